"""ICC profiles made by hand, and by other arithmetic what colours of theirs are in sRGB."""

import struct

import numpy as np

# Of red, green, blue: x, y; and the exponent of the curve, 0 for that of sRGB. White is D65.
Space = tuple[tuple[tuple[float, float], ...], float]
SRGB: Space = (((0.64, 0.33), (0.30, 0.60), (0.15, 0.06)), 0)
DISPLAY_P3: Space = (((0.68, 0.32), (0.265, 0.69), (0.15, 0.06)), 0)
ADOBE_RGB: Space = (((0.64, 0.33), (0.21, 0.71), (0.15, 0.06)), 563 / 256)

_D65, _D50 = np.array([0.95047, 1, 1.08883]), np.array([0.9642, 1, 0.8249])
_BRADFORD = np.array(
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)


def in_srgb(levels: np.ndarray, space: Space) -> np.ndarray:
    """What levels 0..255 of a space, float [..., 3], are in sRGB, clipped to it."""
    primaries, gamma = space
    shares = levels / 255
    of_srgb = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    linear = shares**gamma if gamma else of_srgb
    mixed = linear @ (np.linalg.inv(_to_xyz(SRGB[0])) @ _to_xyz(primaries)).T
    mixed = np.clip(mixed, 0, 1)
    dark = mixed * 12.92
    return 255 * np.where(mixed <= 0.0031308, dark, 1.055 * mixed ** (1 / 2.4) - 0.055)


def rgb_profile(space: Space) -> bytes:
    """The display profile of a space: three colorants, as of D50, and their curves."""
    primaries, gamma = space
    adapted = np.linalg.inv(_BRADFORD) @ np.diag(
        (_BRADFORD @ _D50) / (_BRADFORD @ _D65)
    ) @ _BRADFORD @ _to_xyz(primaries)  # fmt: skip
    curve = _fixed(b"para\0\0\0\0\0\3\0\0", 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    if gamma:
        curve = _gamma(gamma)
    tags = {f"{name}XYZ".encode(): _fixed(b"XYZ \0\0\0\0", *adapted[:, i])
            for i, name in enumerate("rgb")}  # fmt: skip
    return _profile(b"mntrRGB XYZ ", tags | {f"{name}TRC".encode(): curve for name in "rgb"})


def grey_profile(gamma: float) -> bytes:
    return _profile(b"mntrGRAYXYZ ", {b"kTRC": _gamma(gamma)})


def cmyk_profile(paper: int, ink: int) -> bytes:
    """Of a press with a paper of one lightness, 0..255, and a black of another; no colours."""
    corners = bytes(v for inks in range(16) for v in (ink if inks & 1 else paper, 128, 128))
    same = bytes(range(256))
    table = _fixed(b"mft1\0\0\0\0\4\3\2\0", *np.eye(3).ravel()) + same * 4 + corners + same * 3
    return _profile(b"prtrCMYKLab ", {b"A2B0": table})


def _to_xyz(primaries: tuple[tuple[float, float], ...]) -> np.ndarray:
    columns = np.array([(x / y, 1, (1 - x - y) / y) for x, y in primaries]).T
    return columns * np.linalg.solve(columns, _D65)


def _gamma(exponent: float) -> bytes:
    return b"curv\0\0\0\0\0\0\0\1" + round(exponent * 256).to_bytes(2) + b"\0\0"


def _fixed(head: bytes, *values: float) -> bytes:
    return head + b"".join(struct.pack(">i", round(value * 65536)) for value in values)


def _profile(kind: bytes, tags: dict[bytes, bytes]) -> bytes:
    """ICC.1:2010, 7: a header, the table of tags, the tags."""
    tags = {b"wtpt": _fixed(b"XYZ \0\0\0\0", *_D50), **tags}
    table, data = struct.pack(">I", len(tags)), b""
    for name, tag in tags.items():
        table += name + struct.pack(">II", 132 + 12 * len(tags) + len(data), len(tag))
        data += tag + bytes(-len(tag) % 4)
    header = struct.pack(">I4xI12s", 132 + 12 * len(tags) + len(data), 0x04200000, kind)
    header += bytes(12) + b"acsp" + bytes(28) + _fixed(b"", *_D50)
    return header.ljust(128, b"\0") + table + data
