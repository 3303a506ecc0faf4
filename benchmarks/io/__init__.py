"""What receive offload is worth where packets come from the kernel and go back to it.

    python -m benchmarks.io [--quick] [--only PART] [--json PATH]

Four parts: UDP sockets, the same at several MTUs, a VPN writing to a TUN, and merging without a
timer against a table held by one. What is compared runs in turn, round after round, in network
namespaces made for it. Needs root and pyroute2; nothing is left behind.
"""
