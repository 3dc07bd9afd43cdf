"""Embeddings of images by an image model in an ONNX file, as an additional view (extra `onnx`)."""

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
"""Maximum size of a model file in bytes, which exceeds the limit of protocol buffers."""
SIDE = 224
"""Input size of the model in pixels per side if the file does not specify it."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Channel means and standard deviations (red, green, blue) of ImageNet, on which most image models were trained."""


@dataclass(frozen=True)
class Embedding:
    """ONNX image model whose embeddings form an additional view.

    An image is resized to a square, scaled to 0..1, and standardized by `mean` and `deviation` of its channels. The
    model receives a float32 array of shape 1 x 3 x side x side, and its first output is flattened to a vector. Use
    `Embedding.open` to open a file.

    Parameters
    ----------
    path : str
        Path of the file. The path in a loaded model or store is never opened: set `dmo.onnx` to the file.
    sha256 : str
        SHA-256 of the file. A file with another hash raises an error.
    side : int
        Input size in pixels per side.
    dimension : int
        Number of output values.
    mean, deviation : tuple of float, default=values of ImageNet
        Means and standard deviations of the red, green and blue channels in 0..1.

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
        """Open a model file and determine its input and output sizes.

        Parameters
        ----------
        path : path-like
            Path of the file.

        Returns
        -------
        Embedding
            The model with its input and output sizes.

        Raises
        ------
        FileNotFoundError
            If the file does not exist.
        ImportError
            If onnxruntime is not installed.
        UserError
            If the file is not an ONNX model with one input, an image with three channels.
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
        """Path of the file to open; raises UserError if the path comes from a loaded model or store."""
        if isinstance(self.path, SavedLocation):
            raise self.path.refused("onnx", "as the setting dmo.onnx, such as DASK_DMO__ONNX=FILE before the command")
        return self.path

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Compute the embedding of an image (h x w x 3, uint8): float32."""
        cv2 = need_library("cv2")
        square = cv2.resize(image, (self.side, self.side), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
        ready = (square - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        session = _session(self.file, self.sha256)
        found = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(ready.transpose(2, 0, 1)[None])})
        return np.asarray(found[0], dtype=np.float32).ravel()

    def to_dict(self) -> dict[str, Any]:
        """Convert the model to JSON values.

        Returns
        -------
        dict of str to object
            Values that `from_dict` accepts.
        """
        path = self.path.text if isinstance(self.path, SavedLocation) else self.path
        return {**asdict(self), "path": path, "mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Embedding:
        """Create a model from the values of `to_dict`.

        Parameters
        ----------
        given : mapping of str to object
            The JSON values.

        Returns
        -------
        Embedding
            The equal model.
        """
        return cls(**{**given, "mean": tuple(given["mean"]), "deviation": tuple(given["deviation"])})


def _content(path: str) -> bytes:
    """Read a model file. Reject pipes and devices, which a third party's recipe may name and which never end."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
        raise UserError(f"{path}: is not a regular file of at most {LARGEST} bytes; pass an ONNX model")
    with open(path, "rb") as file:
        return file.read()


@lru_cache(maxsize=2)
def _session(path: str, sha256: str) -> Any:
    """Load a model with one thread per image; raise ValueError if the file is invalid or has another hash."""
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            "embeddings need onnxruntime, which is not installed; run: pip install dmo-learn[onnx]"
        ) from None
    content = _content(path)
    if file_digest(io.BytesIO(content)) != sha256:
        raise UserError(f"{path}: is not the model that the rows were made with; restore that file, or extract again")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Disable weights in external files, which the hash does not cover, by searching them where no file exists.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        # A retry with the same provider would only print to standard output.
        return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        if "xternal data" in reason:
            reason = "its weights are in other files; save a single file with onnx.save(onnx.load(...), ...)"
        raise UserError(f"{path}: cannot be read as an ONNX model ({reason})") from error
