"""Compiled kernels: C++ with a plain C interface, built by the system's compiler at first use and called by ctypes.

The sources are the *.cpp files of this folder, one file per group of kernels; common.h has what they share. Next to each
is a Python file with its autograd function, which falls back to torch's operations where the kernel does not apply.
Without a compiler there are no compiled kernels, and everything is computed by products.py and spectra.py.
"""
