"""Embeddings of images, computed by an image model in an ONNX file. The model requires `dmo-learn[onnx]`."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dmo.errors import SavedLocation, UserError
from dmo.features.images import need_library
from dmo.hashing import file_digest

VIEW = "onnx"
LARGEST = 1 << 31
"""Maximum size of a model file in bytes. ONNX files cannot be larger, because they are protocol buffers."""
SIDE = 224
"""Side length of the input image in pixels if the model file does not specify it."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Means and standard deviations of the red, green and blue channels in ImageNet, with which most models are trained."""


@dataclass(frozen=True)
class Embedding:
    """ONNX image model whose embeddings form an additional view. Use `Embedding.open` to open a model file.

    An image is resized to a square, scaled to values from 0 to 1, and standardized. The input of the model is a float32
    array of shape (1, 3, side, side), and its first output is flattened.

    Parameters
    ----------
    path : str
        Path of the model file. The path in a saved model or store is never opened; set `dmo.onnx` to the path instead.
    sha256 : str
        SHA-256 hash of the file. A file with another hash raises an error.
    side : int
        Side length of the input image in pixels.
    dimension : int
        Number of values in an embedding.
    mean, deviation : tuple of float, default=values of ImageNet
        Means and standard deviations of the red, green and blue channels, whose values are between 0 and 1.

    Examples
    --------
    >>> from dmo.features import Embedding
    >>> model = Embedding("resnet.onnx", "0" * 64, side=224, dimension=512)
    >>> Embedding.from_dict(model.to_dict()) == model
    True
    """

    path: str | SavedLocation
    sha256: str
    side: int
    dimension: int
    mean: tuple[float, ...] = MEAN
    deviation: tuple[float, ...] = DEVIATION

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Embedding:
        """Open a model file, and determine the sizes of its input and output.

        Parameters
        ----------
        path : path-like
            Path of the model file.

        Returns
        -------
        Embedding
            Model with the sizes of its input and output.

        Raises
        ------
        FileNotFoundError
            If the file does not exist.
        ImportError
            If onnxruntime is not installed.
        UserError
            If the file is not an ONNX model whose only input is a square image with three channels.
        """
        path = os.path.abspath(path)
        digest = file_digest(io.BytesIO(_content(path)))
        inputs = _session(path, digest).get_inputs()
        if not inputs:
            raise UserError(f"{path}: it has no input, expected one float tensor N x 3 x H x W")
        shape = inputs[0].shape
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(shape) != 4 or shape[1] not in (3, "C", None):
            raise UserError(f"{path}: its input is {inputs[0].type} {shape}, expected one float tensor N x 3 x H x W")
        side = shape[2] if isinstance(shape[2], int) else SIDE
        if isinstance(shape[3], int) and shape[3] != side:
            raise UserError(f"{path}: its input is {shape[2]} x {shape[3]} pixels, expected square images")
        found = cls(path, digest, side, 0)
        return cls(path, digest, side, len(found(np.zeros((side, side, 3), np.uint8))))

    @property
    def file(self) -> str:
        """Path of the model file. The property raises UserError if the path comes from a saved model or store."""
        if isinstance(self.path, SavedLocation):
            raise self.path.refused("onnx", "as the setting dmo.onnx, such as DASK_DMO__ONNX=FILE before the command")
        return self.path

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Compute the float32 embedding of a uint8 image of shape (h, w, 3)."""
        cv2 = need_library("cv2")
        square = cv2.resize(image, (self.side, self.side), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
        ready = (square - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        session = _session(self.file, self.sha256)
        found = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(ready.transpose(2, 0, 1)[None])})
        return np.asarray(found[0], dtype=np.float32).ravel()

    def to_dict(self) -> dict[str, Any]:
        """Convert the description of the model to a JSON dictionary.

        Returns
        -------
        dict of str to object
            Parameters of the model by name.
        """
        path = self.path.text if isinstance(self.path, SavedLocation) else self.path
        return {**asdict(self), "path": path, "mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Embedding:
        """Create a model from a JSON dictionary.

        Parameters
        ----------
        given : mapping of str to object
            Dictionary that `to_dict` returned.

        Returns
        -------
        Embedding
            Model with the same parameters.
        """
        return cls(**{**given, "mean": tuple(given["mean"]), "deviation": tuple(given["deviation"])})


def _content(path: str) -> bytes:
    """Read a model file; raise UserError for pipes and devices, because reading them may never end."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
        raise UserError(f"{path}: is not a regular file of at most {LARGEST} bytes; pass an ONNX model")
    with open(path, "rb") as file:
        return file.read()


@lru_cache(maxsize=2)
def _session(path: str, sha256: str) -> Any:
    """Load a model that uses one thread; raise UserError if the file is invalid or has another hash."""
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            "embeddings need onnxruntime, which is not installed; run: pip install dmo-learn[onnx]"
        ) from None
    content = _content(path)
    if file_digest(io.BytesIO(content)) != sha256:
        raise UserError(f"{path}: is not the model that computed the features; restore that file, or extract again")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # The hash of the model file does not cover weights in other files, so do not load such weights. Loading fails if
    # the folder of these files is the null device.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        # By default, onnxruntime repeats a failed attempt and prints to standard output, so disable the fallback.
        return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        if "xternal data" in reason:
            reason = "its weights are in other files; save a single file with onnx.save(onnx.load(...), ...)"
        raise UserError(f"{path}: cannot be read as an ONNX model ({reason})") from error
