"""What `python -m pcaps.record` is made of.

- network: network namespaces, and the links between them
- tap: frames read from AF_PACKET sockets
- cable: a user-space forwarder that harms, marks or tags what it carries
- paths: the ways between the two sides, each with its tap
- traffic: applications that make the kernel's TCP and UDP send something
- mixture: the demo's traffic
- dissect: one frame taken apart
- facts: what a capture holds, counted without the engine
- scenarios: one recording for each file
"""
