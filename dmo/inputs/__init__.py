"""Validation of every estimator's input: views, labels and outputs, parameters; whose message it is."""

from dmo.inputs.containers import ClassWeight, Columns, Inputs, Outputs, RowWeights, Views, as_views
from dmo.inputs.data import (
    Data,
    SampleWeights,
    check_row_weights,
    check_weights,
    directions,
    read_complete,
    read_labels,
    read_some,
)
from dmo.inputs.needs import (
    CLASS_WEIGHT,
    COUNT,
    FLAG,
    NOT_NEGATIVE,
    PART,
    POSITIVE,
    POSITIVES,
    SEED,
    SHARE,
    Named,
    Need,
    at_least,
    check_parameter,
    check_parameters,
    count_components,
    label_rank,
    named,
    naming,
    needs_of,
    one_of,
    optional,
    per_view,
    unused,
)
from dmo.inputs.outputs import (
    LabelRows,
    are_many,
    are_real,
    check_known_labels,
    check_label_factor,
    check_labels,
    check_many_labels,
    check_outputs,
    check_partial_labels,
    check_stored_labels,
    is_label_sets,
    missing_entries,
    warn_of_outputs,
)
from dmo.inputs.preparation import Gaps, Preparation, Prepare, Scales, preparing
from dmo.inputs.views import (
    SINGLE,
    PreparedViews,
    check_raw_views,
    check_view_names,
    check_views,
    only_view,
    prepare_views,
    sample_count,
)
