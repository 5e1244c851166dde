"""The tap symbol: `tell(event)` calls a function that does nothing, with the structure in a bytearray.

WAY says how: "extension", "ctypes", or "none" where no native piece was built; then tell() does nothing at all. TOKENGAUGE_HOOK=ctypes or
=none in the environment takes the slower way on purpose.
"""
import os

_FIXED = 80


def _extension():
    from . import _tap

    return _tap.tell


def _ctypes():
    import ctypes

    library = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libtokengauge_tap.so"))
    function = library.tokengauge_tap_v1
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    byte = ctypes.c_char

    def tell(event):
        """Hands the structure in a bytearray to the tap symbol."""
        told = _FIXED + event[8] + event[10]  # both lengths are less than 256, and these machines are little-endian
        function(ctypes.addressof(byte.from_buffer(event)), min(told, len(event)))

    return tell


def _none():
    def tell(event):
        """Does nothing: no native piece was built."""

    return tell


def _choose():
    ways = [("extension", _extension), ("ctypes", _ctypes), ("none", _none)]
    wanted = os.environ.get("TOKENGAUGE_HOOK")
    for name, way in ways:
        if wanted in [n for n, _ in ways] and name != wanted and name != "none":
            continue
        try:
            return name, way()
        except (ImportError, OSError, AttributeError):
            continue
    return "none", _none()


WAY, tell = _choose()
