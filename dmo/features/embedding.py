"""Embeddings of images by any image model in an ONNX file, as one more view (extra `onnx`)."""

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
"""Bytes of a model: more than a protocol buffer can hold."""
SIDE = 224
"""Pixels a side of the model's input where the file leaves them open."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the red, green and blue of ImageNet, which most image models were trained on."""


@dataclass(frozen=True)
class Embedding:
    """An image model in an ONNX file, as one more view.

    An image is squeezed into a square, scaled to 0..1, and standardized by `mean` and `deviation` of its channels; the input
    is 1 x 3 x side x side float32, the first output is taken as a vector. `Embedding.open` looks at a file.

    Parameters
    ----------
    path : str
        The file. The recipe of a loaded model or store does not open the path that it names: set `dmo.onnx` to the file.
    sha256 : str
        SHA-256 of its bytes: another file is refused.
    side : int
        Pixels a side of the input.
    dimension : int
        Numbers in the output.
    mean, deviation : tuple of float, default=that of ImageNet
        Of the red, green and blue in 0..1.

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
        """Look at a model.

        Parameters
        ----------
        path : path-like
            The file.

        Returns
        -------
        Embedding
            With the sides of its input and its output.

        Raises
        ------
        FileNotFoundError
            Where there is no file.
        ImportError
            Where onnxruntime is missing.
        UserError
            For a file that is no ONNX model of one image with three channels.
        """
        path = os.path.abspath(path)
        digest = file_digest(io.BytesIO(_content(path)))
        inputs = _session(path, digest).get_inputs()
        if not inputs:
            raise UserError(f"{path}: it has no input, needed is one float tensor N x 3 x H x W")
        shape = inputs[0].shape
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(shape) != 4 or shape[1] not in (3, "C", None):
            raise UserError(f"{path}: its input is {inputs[0].type} {shape}, needed is one float tensor N x 3 x H x W")
        side = shape[2] if isinstance(shape[2], int) else SIDE
        if isinstance(shape[3], int) and shape[3] != side:
            raise UserError(f"{path}: its input is {shape[2]} x {shape[3]} pixels, only square ones are made")
        found = cls(path, digest, side, 0)
        return cls(path, digest, side, len(found(np.zeros((side, side, 3), np.uint8))))

    @property
    def file(self) -> str:
        """The file to open, which the user has named; UserError if a loaded model or store names it."""
        if isinstance(self.path, SavedLocation):
            raise self.path.refused("onnx", "as the setting dmo.onnx, such as DASK_DMO__ONNX=FILE before the command")
        return self.path

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """The embedding of an image (h x w x 3, uint8): float32."""
        cv2 = need_library("cv2")
        square = cv2.resize(image, (self.side, self.side), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
        ready = (square - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        session = _session(self.file, self.sha256)
        found = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(ready.transpose(2, 0, 1)[None])})
        return np.asarray(found[0], dtype=np.float32).ravel()

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values.

        Returns
        -------
        dict of str to object
            What `from_dict` takes.
        """
        path = self.path.text if isinstance(self.path, SavedLocation) else self.path
        return {**asdict(self), "path": path, "mean": list(self.mean), "deviation": list(self.deviation)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Embedding:
        """Take back what `to_dict` gave.

        Parameters
        ----------
        given : mapping of str to object
            The JSON values.

        Returns
        -------
        Embedding
            The same model.
        """
        return cls(**{**given, "mean": tuple(given["mean"]), "deviation": tuple(given["deviation"])})


def _content(path: str) -> bytes:
    """The bytes of a model; a recipe of others may name a pipe, which waits for ever, or a device, which has no end."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
        raise UserError(f"{path}: is no regular file of at most {LARGEST} bytes, as an ONNX model is; pass another")
    with open(path, "rb") as file:
        return file.read()


@lru_cache(maxsize=2)
def _session(path: str, sha256: str) -> Any:
    """The model in a file with this content, one thread an image; ValueError where the file is another or no model."""
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            "embeddings need onnxruntime, which is not installed; run: pip install dmo-learn[onnx]"
        ) from None
    content = _content(path)
    if file_digest(io.BytesIO(content)) != sha256:
        raise UserError(f"{path}: is not the model that the rows were made with; put that file back, or extract again")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # weights in other files, which the hash does not cover, are looked for where there is none
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        # a second try with the same provider would only print to standard output
        return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        if "xternal data" in reason:
            reason = "its weights lie in other files; save it as one, as onnx.save(onnx.load(...), ...) does"
        raise UserError(f"{path}: cannot be read as an ONNX model ({reason})") from error
