"""Samples from a folder of images: one folder per class, with images of one size.

Arrays (.npy) and portable maps (.pgm, .ppm) are read here; other formats by Pillow, if it is installed. Pixels are
scaled to 0 to 1.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.data.dataset import DataFault
from zerosim.files import open_regular

MOST_FILES = 10**6
MOST_BYTES = 1 << 26


def image_arrays(folder: Path, fault: DataFault) -> dict[str, Array]:
    """x (samples, height, width, …) as float32 and y, the number of each file's folder; both in the order of names."""
    classes = sorted(each for each in folder.iterdir() if each.is_dir())
    files = [(number, file) for number, each in enumerate(classes) for file in sorted(each.iterdir())]
    if not files or len(files) > MOST_FILES:
        raise fault(f"a folder of images has a folder for each class, and in all 1 to {MOST_FILES:,} files; found "
                    f"{len(files)} in {len(classes)} folders")
    images = [pixels(file, fault) for _, file in files]
    for (_, file), image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            raise fault(f"{file.name} has shape {image.shape}, and {files[0][1].name} {images[0].shape}; give images "
                        "of one size")
    return {"x": np.stack(images), "y": np.array([number for number, _ in files])}


def pixels(file: Path, fault: DataFault) -> Array:
    """One image as float32, from 0 to 1."""
    try:
        with open_regular(file) as stream:
            content = stream.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise fault(f"{file.name} has more than {MOST_BYTES:,} bytes")
            stream.seek(0)
            if file.suffix == ".npy":
                found = np.lib.format.read_array(stream, allow_pickle=False)
            elif content[:2] in (b"P5", b"P6"):
                found = portable(content)
            else:
                found = by_pillow(stream)
    except ImportError:
        raise fault(f"{file.name} is read by Pillow, which is not installed; pip install pillow, or save as .npy, .pgm "
                    "or .ppm") from None
    except (OSError, ValueError, LookupError) as error:
        raise fault(f"{file.name} is not an image: {' '.join(str(error).split())[:120]}") from None
    scale = np.float32(np.iinfo(found.dtype).max) if found.dtype.kind == "u" else np.float32(1)
    scaled: Array = found.astype(np.float32) / scale
    return scaled


def portable(content: bytes) -> Array:
    """A portable grey or pixel map of 8 bits.

    >>> portable(b"P5 2 1 255 \\x00\\xff").tolist()
    [[0, 255]]
    """
    kind, width, height, most = content[:64].split(maxsplit=4)[:4]
    shape = (int(height), int(width)) if kind == b"P5" else (int(height), int(width), 3)
    start = len(content) - int(np.prod(shape))
    if int(most) != 255 or start < 0:
        raise ValueError("a portable map has 8 bits and no comments here")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def by_pillow(stream: Any) -> Array:
    image: Any = import_module("PIL.Image")
    found: Array = np.asarray(image.open(stream))
    return found
