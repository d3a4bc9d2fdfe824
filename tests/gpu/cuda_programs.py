"""Small programs on a real card, through libcuda alone: no compiler and no toolkit is needed."""

from __future__ import annotations

_BEGIN = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def do(code):
    if code:
        sys.exit(f"CUDA error {code}")
device, context = ctypes.c_int(), ctypes.c_void_p()
do(cuda.cuInit(0))
do(cuda.cuDeviceGet(ctypes.byref(device), 0))
do(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
do(cuda.cuCtxSetCurrent(context))
"""

HOLDER = f"""{_BEGIN}
memory = ctypes.c_uint64()
do(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1]))))
print(os.getpid(), flush=True)
sys.stdin.read()
"""
"""Holds so many bytes of the first card, tells its pid, and waits for the end of its input."""

_OUT_OF_BOUNDS = """
.version 6.0
.target sm_50
.address_size 64
.visible .entry oob()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""

FAULTY = f"""{_BEGIN}
module, function = ctypes.c_void_p(), ctypes.c_void_p()
do(cuda.cuModuleLoadData(ctypes.byref(module), {_OUT_OF_BOUNDS.encode()!r}))
do(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"oob"))
do(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
sys.exit(0 if cuda.cuCtxSynchronize() else "the kernel ended well")
"""
"""Writes to an address that is nobody's, which the driver reports as Xid 31."""

ENGINE = """
import os, subprocess, sys
subprocess.Popen(
    [sys.executable, "-c", {holder!r}, sys.argv[1]],
    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
)
os.execv(sys.executable, [sys.executable, "-m", "watchdog.simulator", *sys.argv[2:]])
""".format(holder=HOLDER.replace("sys.stdin.read()", "import signal\nsignal.pause()"))
"""The simulated engine, with a child that holds so many bytes of the first card."""
