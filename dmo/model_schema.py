"""What the JSON of a model and of a recipe of images may hold, part by part: it may come from anyone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, model_validator

Count = Annotated[int, Field(gt=0, lt=1 << 48)]
Number = Annotated[float, Field(allow_inf_nan=False, gt=-1e100, lt=1e100)]
Scale = Annotated[float, Field(gt=0, lt=1e50)]
Share = Annotated[float, Field(ge=0, le=1)]
LabelType = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"
]
T = TypeVar("T")


class _Part(BaseModel):
    """Types are those of JSON, nothing is converted; what an estimator keeps besides is its own to check."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class KernelSpec(_Part):
    """What `Kernel.to_dict` writes.

    Attributes
    ----------
    kernel : str
        Name.
    kernels : list of KernelSpec
        Parts of a sum or product.
    weights : list of float or None
        Their weights.
    bandwidth : float, str or None
        Number or rule.
    normalize : str or None
        What is done to rows first.
    scale : float
        Factor of the features.
    offset : list of float or None
        What was taken from the features.

    Examples
    --------
    >>> from dmo.kernels import RBF
    >>> from dmo.model_schema import KernelSpec, checked
    >>> checked(KernelSpec, RBF(bandwidth=2.0).to_dict()).bandwidth
    2.0
    """

    kernel: str
    kernels: list[KernelSpec] = []
    weights: list[Number] | None = None
    bandwidth: Scale | str | None = None
    normalize: str | None = None
    scale: Scale = 1.0
    offset: list[Number] | None = None


class Kernels(_Part):
    """What `MultiKernel.to_dict` writes.

    Attributes
    ----------
    kernels : dict of str to KernelSpec
        By view.
    weights : dict of str to float
        By view.
    combine : {"sum", "product"}
        How they are combined.

    Examples
    --------
    >>> from dmo.kernels import RBF
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> from dmo.model_schema import Kernels, checked
    >>> checked(Kernels, MultiKernel.of("gist", RBF(bandwidth=2.0)).to_dict()).weights
    {'gist': 1.0}
    """

    kernels: Annotated[dict[str, KernelSpec], Field(min_length=1)]
    weights: dict[str, Number]
    combine: Literal["sum", "product"]

    @model_validator(mode="after")
    def _weighted(self) -> Self:
        if set(self.weights) != set(self.kernels):
            raise ValueError("kernels and weights are of other views")
        return self


class Map(_Part):
    """What `FeatureMap.to_arrays` describes.

    Attributes
    ----------
    kind : str
        "nystrom", "meka" or another name of a map.
    kernel : KernelSpec
        What it approximates.
    dtype : {"float32", "float64"}
        Of its features.
    error : dict of str to float or None
        Estimates of its error.

    Examples
    --------
    >>> from dmo.model_schema import Map, checked
    >>> checked(Map, {"kind": "nystrom", "kernel": {"kernel": "linear"}, "dtype": "float32"}).kind
    'nystrom'
    """

    kind: str
    kernel: KernelSpec
    dtype: Literal["float32", "float64"]
    error: dict[str, float] | None = None


class KernelPart(_Part):
    """What `KernelExpansion.to_arrays` describes.

    Attributes
    ----------
    kernel : Kernels
        Of some views.
    dtype : {"float32", "float64"}
        Of its products.

    Examples
    --------
    >>> from dmo.model_schema import KernelPart, checked
    >>> kernels = {"kernels": {"gist": {"kernel": "linear"}}, "weights": {"gist": 1.0}, "combine": "sum"}
    >>> checked(KernelPart, {"kernel": kernels, "dtype": "float64"}).views()
    {'gist'}
    """

    kernel: Kernels
    dtype: Literal["float32", "float64"]

    def views(self) -> set[str]:
        """Name the views that it reads.

        Returns
        -------
        set of str
            Their names.
        """
        return set(self.kernel.kernels)


class FactorPart(_Part):
    """What `FactorExpansion.to_arrays` describes.

    Attributes
    ----------
    view : str
        What it reads.
    map : Map
        Features of the view.

    Examples
    --------
    >>> from dmo.model_schema import FactorPart, checked
    >>> a_map = {"kind": "nystrom", "kernel": {"kernel": "linear"}, "dtype": "float32"}
    >>> checked(FactorPart, {"view": "gist", "map": a_map}).views()
    {'gist'}
    """

    view: str
    map: Map

    def views(self) -> set[str]:
        """Name the views that it reads.

        Returns
        -------
        set of str
            Its name.
        """
        return {self.view}


class LinearPart(_Part):
    """What `LinearExpansion.to_arrays` describes.

    Attributes
    ----------
    view : str
        What it reads.
    map : None
        There is none.
    kernel : None
        There is none.

    Examples
    --------
    >>> from dmo.model_schema import LinearPart, checked
    >>> checked(LinearPart, {"view": "gist"}).views()
    {'gist'}
    """

    view: str
    map: None = None
    kernel: None = None

    def views(self) -> set[str]:
        """Name the views that it reads.

        Returns
        -------
        set of str
            Its name.
        """
        return {self.view}


class Rule(BaseModel):
    """What `ScoreRule.to_arrays` describes.

    Attributes
    ----------
    standardize : float
        From 0 to 1.
    prior_power : float
        From 0 to 1.
    n_train : float
        Training samples, of propensities; 0: none.

    Examples
    --------
    >>> from dmo.model_schema import Rule, checked
    >>> checked(Rule, {"standardize": 2.0, "prior_power": 0.0})
    Traceback (most recent call last):
    ValueError: standardize: Input should be less than or equal to 1
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    standardize: Share
    prior_power: Share
    n_train: Annotated[float, Field(ge=0)] = 0.0


class PlugInPart(BaseModel):
    """What `PlugInRule.to_arrays` describes.

    Attributes
    ----------
    size : int
        Samples that predictions are judged on.
    mean_precision : float
        From 0 to 1.
    mean_recall : float
        From 0 to 1.

    Examples
    --------
    >>> from dmo.model_schema import PlugInPart, checked
    >>> checked(PlugInPart, {"size": 499, "mean_precision": 0.4, "mean_recall": 0.4}).size
    499
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    size: Count
    mean_precision: Share
    mean_recall: Share


class GainPart(BaseModel):
    """What `GainRule.to_arrays` describes: nothing but its arrays.

    Examples
    --------
    >>> from dmo.model_schema import GainPart, checked
    >>> checked(GainPart, {})
    GainPart()
    """

    model_config = ConfigDict(strict=True, extra="forbid")


class Decoding(BaseModel):
    """What `FittedDecoder.to_arrays` describes.

    Attributes
    ----------
    rule : PlugInPart, GainPart or None
        The plug-in rule, where there is one.
    ranks : bool
        Whether it ranks labels.

    Examples
    --------
    >>> from dmo.model_schema import Decoding, checked
    >>> checked(Decoding, {"rule": None, "ranks": True}).rule is None
    True
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    rule: PlugInPart | GainPart | None
    ranks: bool


class Fitted(_Part):
    """What was learned besides arrays; each estimator has some of these, and misses those that it needs itself.

    Attributes
    ----------
    view_widths_ : dict of str to int
        Columns of every view.
    n_features_in_ : int or None
        Columns of all.
    label_names_ : list of str or None
        Of the labels.
    label_dtype_ : LabelType
        Of label sets, as the labels of the fit had it.
    expansions : dict of str to KernelPart, FactorPart or LinearPart
        Functions of new rows, by view.
    map : Map or None
        Features of the one view.
    rule : Rule or None
        How scores are adjusted.
    decoding : Decoding or None
        How they become labels.
    kernels : dict of str to KernelSpec
        Kernels or distances by view.
    base : Model or None
        A model that this one goes on from.
    distance_scale : float or None
        Mean distance.
    multilabel : bool
        Whether outputs are 0 and 1.
    objective_history : list of float
        After every step.
    n_iter : int
        Steps.
    view, linear : str
        The view that it reads.
    columns : int or None
        Of precomputed distances or kernels.
    view_weights : dict of str to float
        By view.
    numbers : dict of str to float
        Learned numbers by name.
    bandwidth : float or str
        Of the neighbors' weights.
    correlation : float or None
        Of labels.
    scales : dict of str to str
        View -> how its columns were scaled, of views that were prepared.

    Examples
    --------
    >>> from dmo.model_schema import Fitted, checked
    >>> checked(Fitted, {"view_widths_": {"gist": 512}, "view": "words"})
    Traceback (most recent call last):
    ValueError: the whole: Value error, the views ['words'] are not those that it was fitted on
    """

    view_widths_: Annotated[dict[str, Count], Field(min_length=1, alias="view_widths_")] = {}
    n_features_in_: Annotated[Count | None, Field(alias="n_features_in_")] = None
    label_names_: Annotated[list[str] | None, Field(alias="label_names_")] = None
    label_dtype_: Annotated[LabelType, Field(alias="label_dtype_")] = "uint8"
    expansions: Annotated[dict[str, KernelPart | FactorPart | LinearPart], Field(min_length=1)] = {}
    map: Map | None = None
    rule: Rule | None = None
    decoding: Decoding | None = None
    kernels: dict[str, KernelSpec] = {}
    base: Model | None = None
    distance_scale: Scale | None = None
    multilabel: bool = False
    objective_history: Annotated[list[float], Field(min_length=1)] = [0.0]
    n_iter: int = 0
    view: str = ""
    linear: str = ""
    columns: Count | None = None
    view_weights: dict[str, Number] = {}
    numbers: dict[str, bool | float] = {}
    bandwidth: Scale | str = "mean"
    correlation: Annotated[float, Field(ge=0, lt=1e100)] | None = None
    scales: dict[str, Literal["none", "standard", "maxabs", "l2"]] = {}

    @model_validator(mode="after")
    def _of_its_views(self) -> Self:
        if not self.view_widths_ and self.columns is None:
            raise ValueError("neither views nor columns are named")
        used = {getattr(self, name) for name in ("linear", "view") if name in self.model_fields_set}
        used |= {view for part in self.expansions.values() for view in part.views()} | set(self.scales)
        if used - set(self.view_widths_):
            raise ValueError(f"the views {sorted(used)} are not those that it was fitted on")
        return self


class Model(_Part):
    """The meta of a model store that an estimator wrote.

    Attributes
    ----------
    estimator : str
        Name of its class.
    parameters : dict of str to JSON
        What it was made with.
    fitted : Fitted
        What it learned besides arrays.
    attached : dict of str to dict
        JSON that goes with it: the recipe of images, what the fit took.

    Examples
    --------
    >>> from dmo.model_schema import Model, checked
    >>> checked(Model, {"estimator": "KGHA", "parameters": {}, "fitted": {"view_widths_": {"gist": 512}}}).estimator
    'KGHA'
    """

    estimator: str
    parameters: dict[str, JsonValue]
    fitted: Fitted
    attached: dict[str, dict[str, JsonValue]] = {}


class EmbeddingSpec(BaseModel):
    """What `Embedding.to_dict` writes.

    Attributes
    ----------
    path : str
        Of the ONNX file.
    sha256 : str
        Of its contents.
    side : int
        Pixels of the images' sides.
    dimension : int
        Numbers per image.
    mean : list of float
        Taken from the three channels.
    deviation : list of float
        What they are divided by.

    Examples
    --------
    >>> from dmo.model_schema import EmbeddingSpec, checked
    >>> known = {"path": "m.onnx", "sha256": "", "side": 224, "dimension": 512, "mean": [0.5], "deviation": [1.0] * 3}
    >>> checked(EmbeddingSpec, known)
    Traceback (most recent call last):
    ValueError: mean: List should have at least 3 items after validation, not 1
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    path: str
    sha256: str
    side: Count
    dimension: Count
    mean: Annotated[list[Number], Field(min_length=3, max_length=3)]
    deviation: Annotated[list[Scale], Field(min_length=3, max_length=3)]


class RecipeSpec(BaseModel):
    """What `Recipe.to_dict` writes.

    Attributes
    ----------
    views : list of str
        What is extracted.
    side : int
        Pixels of the longer side that images are reduced to.
    max_pixels : int
        Of an image that is read.
    words : dict of str to int or None
        Sizes of vocabularies.
    seed : int
        Of their k-means.
    version : int
        Of the extraction.
    onnx : EmbeddingSpec or None
        The network, where there is one.

    Examples
    --------
    >>> from dmo.model_schema import RecipeSpec, checked
    >>> known = {"views": ["gist"], "side": 320, "max_pixels": 10**8, "words": None, "seed": 0, "version": 1, "onnx": None}
    >>> checked(RecipeSpec, known).views
    ['gist']
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    views: Annotated[list[str], Field(min_length=1)]
    side: Count
    max_pixels: Count
    words: dict[str, Count] | None
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    version: int
    onnx: EmbeddingSpec | None


class AttachedRecipe(_Part):
    """The JSON that goes with the vocabularies of images.

    Attributes
    ----------
    recipe : RecipeSpec
        How images become rows.
    fingerprint : str
        Of recipe and vocabularies.

    Examples
    --------
    >>> from dmo.model_schema import AttachedRecipe, checked
    >>> checked(AttachedRecipe, {"fingerprint": "1f"})
    Traceback (most recent call last):
    ValueError: recipe: Field required
    """

    recipe: RecipeSpec
    fingerprint: str


def check_model(meta: Mapping[str, Any]) -> None:
    """Refuse what is not the meta of a model.

    Parameters
    ----------
    meta : mapping
        JSON.

    Raises
    ------
    ValueError
        With the place and the reason of the first fault.

    Examples
    --------
    >>> from dmo.model_schema import check_model
    >>> check_model({"estimator": "KGHA", "parameters": {}, "fitted": {}})
    Traceback (most recent call last):
    ValueError: fitted: Value error, neither views nor columns are named
    """
    checked(Model, meta)


def checked(kind: type[T], value: Any) -> T:
    """Read what comes from JSON as an object of a kind.

    Parameters
    ----------
    kind : type
        One of the above, or any that pydantic knows.
    value : object
        JSON.

    Returns
    -------
    object
        Of this kind.

    Raises
    ------
    ValueError
        With the place and the reason of the first fault.

    Examples
    --------
    >>> from dmo.model_schema import checked
    >>> checked(list[int], [1, 2])
    [1, 2]
    """
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:60] for part in first["loc"])
        raise ValueError(f"{where or 'the whole'}: {first['msg']}") from None
