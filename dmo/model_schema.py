"""Schemas of the JSON of models and image recipes, which may come from third parties."""

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
    """Base of schemas with strict JSON types and further keys, which the estimator checks itself."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class _Closed(BaseModel):
    """Base of schemas with strict JSON types and without further keys."""

    model_config = ConfigDict(strict=True, extra="forbid")


class KernelSpec(_Part):
    """Schema of `Kernel.to_dict`."""

    kernel: str
    kernels: list[KernelSpec] = []
    weights: list[Number] | None = None
    bandwidth: Scale | str | None = None
    normalize: str | None = None
    scale: Scale = 1.0
    offset: list[Number] | None = None


class Kernels(_Part):
    """Schema of `MultiKernel.to_dict`."""

    kernels: Annotated[dict[str, KernelSpec], Field(min_length=1)]
    weights: dict[str, Number]
    combine: Literal["sum", "product"]

    @model_validator(mode="after")
    def _weighted(self) -> Self:
        if set(self.weights) != set(self.kernels):
            raise ValueError("kernels and weights have different views")
        return self


class Map(_Part):
    """Schema of the JSON part of `FeatureMap.to_arrays`."""

    kind: str
    kernel: KernelSpec
    dtype: Literal["float32", "float64"]
    error: dict[str, float] | None = None


class KernelPart(_Part):
    """Schema of the JSON part of `KernelExpansion.to_arrays`."""

    kernel: Kernels
    dtype: Literal["float32", "float64"]

    def views(self) -> set[str]:
        """Return the names of the views that this function reads."""
        return set(self.kernel.kernels)


class _ViewPart(_Part):
    """Base of schemas of functions of one view."""

    view: str

    def views(self) -> set[str]:
        """Return the names of the views that this function reads."""
        return {self.view}


class FactorPart(_ViewPart):
    """Schema of the JSON part of `FactorExpansion.to_arrays`."""

    map: Map


class LinearPart(_ViewPart):
    """Schema of the JSON part of `LinearExpansion.to_arrays`."""

    map: None = None
    kernel: None = None


class Rule(_Closed):
    """Schema of the JSON part of `ScoreRule.to_arrays`."""

    n_train: Annotated[float, Field(ge=0)]
    standardize: Share
    prior_power: Share
    propensity: bool


class PlugInPart(_Closed):
    """Schema of the JSON part of `PlugInRule.to_arrays`."""

    size: Count
    mean_precision: Share
    mean_recall: Share


class GainPart(_Closed):
    """Schema of the JSON part of `GainRule.to_arrays`, which is empty."""


class SetPart(_Closed):
    """Schema of the JSON part of `SetRule.to_arrays`."""

    metric: str
    right: Share | None = None
    empty: Share | None = None


class Decoding(_Closed):
    """Schema of the JSON part of `FittedDecoder.to_arrays`."""

    rule: PlugInPart | GainPart | SetPart | None
    ranks: bool


class TableColumn(_Closed):
    """Schema of a column in `Schema.to_dict`."""

    name: str
    kind: Literal["number", "boolean", "category", "date", "text", "identifier", "labels"]
    levels: list[str] = []


class TableSchema(_Closed):
    """Schema of `Schema.to_dict`."""

    columns: Annotated[list[TableColumn], Field(min_length=1)]
    missing: list[str]
    decimal: Literal[".", ","]
    grouping: bool


class Fitted(_Part):
    """Schema of the fitted state except arrays; each estimator checks that it has the fields it needs."""

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
    """Schema of the meta dictionary of a model store that an estimator wrote."""

    estimator: str
    parameters: dict[str, JsonValue]
    fitted: Fitted
    attached: dict[str, dict[str, JsonValue]] = {}


class EmbeddingSpec(_Closed):
    """Schema of `Embedding.to_dict`."""

    path: str
    sha256: str
    side: Count
    dimension: Count
    mean: Annotated[list[Number], Field(min_length=3, max_length=3)]
    deviation: Annotated[list[Scale], Field(min_length=3, max_length=3)]


class RecipeSpec(_Closed):
    """Schema of `Recipe.to_dict`."""

    views: Annotated[list[str], Field(min_length=1)]
    side: Count
    max_pixels: Count
    words: dict[str, Count] | None
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    version: int
    onnx: EmbeddingSpec | None


class AttachedRecipe(_Part):
    """Schema of the JSON that is attached to a model with the vocabularies of images."""

    recipe: RecipeSpec
    fingerprint: str


def checked(kind: type[T], value: Any) -> T:
    """Validate a JSON value as an object of type `kind`."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:60] for part in first["loc"])
        raise ValueError(f"{where or 'the whole value'}: {first['msg']}") from None
