"""Schemas that validate the JSON values of models and image recipes, which can come from third parties."""

from __future__ import annotations

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
    """Base class of schemas that allow additional keys, which the estimator validates itself."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class _Closed(BaseModel):
    """Base class of schemas that reject additional keys."""

    model_config = ConfigDict(strict=True, extra="forbid")


class KernelSpec(_Part):
    """Schema of the result of `Kernel.to_dict`."""

    kernel: str
    kernels: list[KernelSpec] = []
    weights: list[Number] | None = None
    bandwidth: Scale | str | None = None
    normalize: str | None = None
    scale: Scale = 1.0
    offset: list[Number] | None = None


class Kernels(_Part):
    """Schema of the result of `MultiKernel.to_dict`."""

    kernels: Annotated[dict[str, KernelSpec], Field(min_length=1)]
    weights: dict[str, Number]
    combine: Literal["sum", "product"]

    @model_validator(mode="after")
    def _weighted(self) -> Self:
        if set(self.weights) != set(self.kernels):
            raise ValueError("kernels and weights have different views")
        return self


class Map(_Part):
    """Schema of the JSON values that `FeatureMap.to_arrays` returns."""

    kind: str
    kernel: KernelSpec
    dtype: Literal["float32", "float64"]
    error: dict[str, float] | None = None


class KernelPart(_Part):
    """Schema of the JSON values that `KernelExpansion.to_arrays` returns."""

    kernel: Kernels
    dtype: Literal["float32", "float64"]

    def views(self) -> set[str]:
        """Return the names of the views from which the function is computed."""
        return set(self.kernel.kernels)


class _ViewPart(_Part):
    """Base class of schemas for functions of a single view."""

    view: str

    def views(self) -> set[str]:
        """Return the names of the views from which the function is computed."""
        return {self.view}


class FactorPart(_ViewPart):
    """Schema of the JSON values that `FactorExpansion.to_arrays` returns."""

    map: Map


class LinearPart(_ViewPart):
    """Schema of the JSON values that `LinearExpansion.to_arrays` returns."""

    map: None = None
    kernel: None = None


class Rule(_Closed):
    """Schema of the JSON values that `ScoreRule.to_arrays` returns."""

    n_train: Annotated[float, Field(ge=0)]
    standardize: Share
    prior_power: Share
    propensity: bool


class PlugInPart(_Closed):
    """Schema of the JSON values that `PlugInRule.to_arrays` returns."""

    size: Count
    mean_precision: Share
    mean_recall: Share


class GainPart(_Closed):
    """Schema of the JSON values of `GainRule.to_arrays`, which are empty."""


class SetPart(_Closed):
    """Schema of the JSON values that `SetRule.to_arrays` returns."""

    metric: str
    right: Share | None = None
    empty: Share | None = None


class Decoding(_Closed):
    """Schema of the JSON values that `FittedDecoder.to_arrays` returns."""

    rule: PlugInPart | GainPart | SetPart | None
    ranks: bool


class TableColumn(_Closed):
    """Schema of a table column in the result of `Schema.to_dict`."""

    name: str
    kind: Literal["number", "boolean", "category", "date", "text", "identifier", "labels"]
    levels: list[str] = []


class TableSchema(_Closed):
    """Schema of the result of `Schema.to_dict`."""

    columns: Annotated[list[TableColumn], Field(min_length=1)]
    missing: list[str]
    decimal: Literal[".", ","]
    grouping: bool


class Fitted(_Part):
    """Schema of the fitted state of an estimator without its arrays; the estimator checks for missing fields."""

    view_widths_: Annotated[dict[str, Count], Field(min_length=1)] = {}
    n_features_in_: Count | None = None
    label_names_: list[str] | None = None
    hierarchy_: dict[str, list[str]] = {}
    table_schemas_: dict[str, TableSchema] = {}
    label_dtype_: LabelType = "uint8"
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
            raise ValueError(f"the views {sorted(used)} are not the views of the fit")
        return self


class Model(_Part):
    """Schema of the metadata of a saved estimator."""

    estimator: str
    parameters: dict[str, JsonValue]
    fitted: Fitted
    attached: dict[str, dict[str, JsonValue]] = {}


class EmbeddingSpec(_Closed):
    """Schema of the result of `Embedding.to_dict`."""

    path: str
    sha256: str
    side: Count
    dimension: Count
    mean: Annotated[list[Number], Field(min_length=3, max_length=3)]
    deviation: Annotated[list[Scale], Field(min_length=3, max_length=3)]


class RecipeSpec(_Closed):
    """Schema of the result of `Recipe.to_dict`."""

    views: Annotated[list[str], Field(min_length=1)]
    side: Count
    max_pixels: Count
    words: dict[str, Count] | None
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    version: int
    onnx: EmbeddingSpec | None


class AttachedRecipe(_Part):
    """Schema of the image recipe that is saved with a model."""

    recipe: RecipeSpec
    fingerprint: str


def checked(kind: type[T], value: Any) -> T:
    """Convert a JSON value to an object of type `kind`; raise ValueError if the value is invalid."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:60] for part in first["loc"])
        raise ValueError(f"{where or 'the whole value'}: {first['msg']}") from None
