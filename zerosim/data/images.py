"""Samples from a folder of images: one folder per class, with images of one size.

Arrays (.npy) and portable maps (.pgm, .ppm) are read here; other formats by Pillow, if it is installed. Pixels are
scaled to 0 to 1.
"""

import io
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.data.dataset import DataFault
from zerosim.data.npz import BROKEN, read_npy
from zerosim.files import contents, is_folder, open_regular

MOST_FILES = 10**6
MOST_BYTES = 1 << 26
"""The most bytes of a file."""
MOST_BYTES_OF_ALL = 1 << 30
"""The most bytes of all pixels as float32."""


def image_arrays(folder: Path, fault: DataFault) -> dict[str, Array]:
    """x (samples, height, width, …) as float32 and y, the number of each file's folder; both in the order of names."""
    classes = [each for each in contents(folder) if is_folder(each)]
    files = [(number, file) for number, each in enumerate(classes) for file in contents(each)]
    if not files or len(files) > MOST_FILES:
        raise fault(f"a folder of images has a folder for each class, and in all 1 to {MOST_FILES:,} files; found "
                    f"{len(files)} in {len(classes)} folders")
    images: list[Array] = []
    for _, file in files:
        image = pixels(file, fault)
        images.append(image)
        if image.nbytes * len(files) > MOST_BYTES_OF_ALL:
            raise fault(f"{len(files):,} images of shape {image.shape} take {image.nbytes * len(files):,} bytes; they "
                        f"may take {MOST_BYTES_OF_ALL:,}, so give fewer or smaller ones")
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
                found = read_npy(lambda: io.BytesIO(content), file.name, len(content), fault)
            elif content[:2] in (b"P5", b"P6"):
                found = portable(content)
            else:
                found = by_pillow(stream)
    except ImportError:
        raise fault(f"{file.name} is read by Pillow, which is not installed; pip install pillow, or save as .npy, .pgm "
                    "or .ppm") from None
    except BROKEN as error:
        raise fault(f"{file.name} is not an image: {' '.join(str(error).split())[:120]}") from None
    if found.dtype.kind not in "biuf":
        raise fault(f"{file.name} must hold real numbers, found {str(found.dtype)[:40]}")
    scale = np.float32(np.iinfo(found.dtype).max) if found.dtype.kind == "u" else np.float32(1)
    with np.errstate(over="ignore"):
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
    """An image that Pillow reads. Its formats fail in many ways, all of which raise `ValueError`."""
    image: Any = import_module("PIL.Image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", image.DecompressionBombWarning)
            found: Array = np.asarray(image.open(stream))
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return found
