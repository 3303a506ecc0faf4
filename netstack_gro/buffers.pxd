# buffers.py is compiled as it stands: its functions are called with objects.
