"""Help pages of commands, which show grouped options with one line each."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup

from dmo.cli.options import Option, written

WIDTH, LINES = 80, 80
"""Maximum width in characters, and maximum number of lines, of a help page."""
TABLES, ENGINES, RUN = "Tables and folders", "Approximation", "Run"
"""Headings for the options that read data files, the options of engines, and the options that all commands share."""
_GROUPS = ("Options", "Search", "Data", TABLES, "Model", ENGINES, "Decisions", "Running")
_COLLAPSED = {TABLES: "explained by dmo ingest files --help", ENGINES: "explained on the page below"}
"""Groups of options that are shortened to lists of names, in this order, if the help is too long."""
_GROUP_OF = {
    **dict.fromkeys(("folds", "scoring", "report"), "Search"),
    **dict.fromkeys(("views", "view", "split", "scale", "impute", "targets", "class_weight", "hierarchy"), "Data"),
    **dict.fromkeys(("decoder", "prior_power", "standardize", "propensity", "label_sets"), "Decisions"),
    **dict.fromkeys(("random_state", "scheduler", "overwrite", "dry_run", "block", "threads", "unreadable"), "Running"),
    **dict.fromkeys(("help", "debug", "version", "install_completion", "show_completion"), "Running"),
}
_PLACE = "reference/commands"
_TYPER = {"help": "Show this help", "show_completion": "Print the completion script of the current shell"}
"""Help texts of the options that Typer adds to commands."""
_FROM_TEXT = re.compile(r'None: "?([-\w.]*\w)"?(?:\.?$|\. | \(|\))')
"""Pattern of a help text that states the actual value of a default None, such as "None: 0.001."."""


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a text as plain text, without its final period."""
    words = " ".join((text or "").replace("`", "").split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z'\"(\[-])", words)[0].removesuffix(".")


def option_line(option: Option, estimator: str, flag: bool, room: int) -> str:
    """Describe an option of an estimator by a short text, its default, and its values if they fit in `room` columns."""
    text = SHORT.get(f"{estimator}.{option.name}") or SHORT.get(option.name) or first_sentence(option.help)
    found = _FROM_TEXT.search(option.help)
    default = found[1] if option.default is None and found else option.default
    shown = "" if default is None or (flag and not default) else f" [{written(default)}]"
    values = "|".join(value for value in option.values if value not in ("none", "true", "false"))
    if "|" in values and not any(isinstance(member, type) for member in option.members):
        text += f": {values}" if len(f"{text}: {values}{shown}") <= room else ""
    return text + shown


def parameter_line(parameter: Any) -> str:
    """Describe a parameter of a command by the first sentence of its help and its default."""
    text, default = _TYPER.get(parameter.name) or first_sentence(parameter.help), parameter.default
    known = "default" in text or isinstance(default, bool) or not isinstance(default, int | float | str)
    return text if known or default == "" else f"{text} [{default}]"


def _flags(option: Any) -> str:
    """Return the names of an option, or --[no-]NAME for a flag that can be switched off."""
    *short, name = sorted(option.opts, key=len)
    return f"--[no-]{name[2:]}" if option.secondary_opts else ", ".join([*short, name])


def _entries(rows: Sequence[tuple[str, str]], left: int, width: int) -> list[str]:
    """Format pairs of a name and a text in two columns; long texts are wrapped within the second column."""
    lines = []
    for name, text in rows:
        first, *more = textwrap.wrap(text, width - left - 4, break_on_hyphens=False) or [""]
        lines += [f"  {name:<{left}}  {first}".rstrip(), *(f"{'':{left + 4}}{line}" for line in more)]
    return lines


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required or argument.metavar else f"[{name}]"


def _arguments(arguments: Sequence[Any], width: int) -> list[str]:
    """Format the arguments of a command, followed by an empty line."""
    if not arguments:
        return []
    # Shorten a placeholder for several paths to PATHS, because the usage line already shows it in full.
    names = ["PATHS" if " " in name else name.strip("[]") for name in map(_argument, arguments)]
    rows = [(name, parameter_line(p)) for name, p in zip(names, arguments, strict=True)]
    return ["Arguments:", *_entries(rows, max(map(len, names)), width), ""]


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns, 40), WIDTH)


def _paragraphs(text: str | None, width: int) -> list[str]:
    """Wrap the paragraphs of a text, each followed by an empty line."""
    parts = [" ".join(part.replace("`", "").split()) for part in (text or "").split("\n\n")]
    return [line for part in parts if part for line in [*textwrap.wrap(part, width), ""]]


class HelpPage(TyperCommand):
    """Command whose help has one line per option; subclasses define the options of an estimator."""

    estimator: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Option]] = {}
    engines: ClassVar[Mapping[str, Option]] = {}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; if it is too long, shorten groups of options to lists of names."""
        titles = tuple(_COLLAPSED)
        for collapsed, spaced in product((titles[:count] for count in range(len(titles) + 1)), (True, False)):
            if len(lines := self.page(ctx, collapsed, spaced)) <= LINES:
                break
        formatter.write("\n".join(lines))

    def page(self, ctx: Any, collapsed: Sequence[str], spaced: bool) -> list[str]:
        """Return the lines of the help; if `spaced` is true, groups of options are separated by empty lines."""
        width, parameters = _width(), [p for p in self.get_params(ctx) if not getattr(p, "hidden", False)]
        arguments = [p for p in parameters if p.param_type_name == "argument"]
        usage = " ".join([ctx.command_path, "[OPTIONS]", *map(_argument, arguments)])
        lines = [*textwrap.wrap(f"Usage: {usage}", width, subsequent_indent=" " * 7), ""]
        lines += [*_paragraphs(self.help, width), *_arguments(arguments, width)]
        groups: dict[str, list[tuple[str, Any]]] = {title: [] for title in _GROUPS}
        for p in parameters:
            if p.param_type_name == "option":
                option = self._option(p)
                star = "*" if option is not None and option.by_view else ""
                groups[self._group(p)].append((_flags(p) + star, p))
        names = [name for title, group in groups.items() if title not in collapsed for name, _ in group]
        left, stars = max(map(len, names)), any(name.endswith("*") for name in names)
        lines.append("Defaults are in brackets." + " * also accepts VIEW=VALUE, once per view." * stars)
        lines += [""] * (not spaced)
        for title, group in groups.items():
            lines += [""] * (spaced and bool(group))
            if title in collapsed and group:
                lines.append(f"{title} ({_COLLAPSED[title]}):")
                lines += [
                    f"  {line}" for line in textwrap.wrap(" ".join(dict(group)), width - 2, break_on_hyphens=False)
                ]
            elif group:
                rows = [(name, self._line(p, width - left - 4)) for name, p in group]
                lines += [f"{title}:", *_entries(rows, left, width)]
        return [*lines, "", details(ctx)]

    def _option(self, parameter: Any) -> Option | None:
        """Return the estimator or engine option of a command parameter, or None for other parameters."""
        known = self.engines if parameter.rich_help_panel == ENGINES else self.options
        return known.get(str(parameter.name))

    def _group(self, parameter: Any) -> str:
        panel = parameter.rich_help_panel
        if panel in (TABLES, ENGINES):
            return str(panel)
        name = "help" if panel == RUN else str(parameter.name)
        return _GROUP_OF.get(name, "Model" if self.estimator else "Options")

    def _line(self, parameter: Any, room: int) -> str:
        option = self._option(parameter)
        flag = bool(parameter.secondary_opts)
        return parameter_line(parameter) if option is None else option_line(option, self.estimator, flag, room)


def details(ctx: Any) -> str:
    """Return the last line of the help, which names the documentation page of the command."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, str(ctx.command.name or ctx.info_name).lower())
        ctx = ctx.parent
    page = f"{_PLACE}/{names[0] if names else 'index'}.html" + (f"#dmo-{'-'.join(names)}" if len(names) > 1 else "")
    return f"Documentation: {page}"


class HelpGroup(TyperGroup):
    """Command group whose help lists its commands below headings."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group."""
        width = _width()
        lines = [f"Usage: {ctx.command_path} [OPTIONS] COMMAND [ARGS]...", "", *_paragraphs(self.help, width)]
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                text = _paragraphs(command.help, 10**6)[:1]
                panels.setdefault(command.rich_help_panel or "Commands", []).append((name, "".join(text)))
        options = [p for p in self.get_params(ctx) if not getattr(p, "hidden", False)]
        panels["Options"] = [(_flags(p), parameter_line(p)) for p in options]
        left = max(len(name) for title, rows in panels.items() for name, _ in rows if title != "Options")
        for title, rows in panels.items():
            own = max(len(name) for name, _ in rows) if title == "Options" else left
            lines += [f"{title}:", *_entries(rows, own, width), ""]
        lines += [*_paragraphs(self.epilog, width), details(ctx)]
        formatter.write("\n".join(lines))


SHORT = {
    "C": "Weight of the loss",
    "a": "Exponent of the label proximity in 'priority'",
    "adjacency": "Edges if one or both are neighbors",
    "approximation": "Engine",
    "b": "Exponent of the feature weights in 'priority'",
    "balance": "Weight of every view relative to the labels",
    "bandwidth": "Bandwidth of 'gaussian' edge weights",
    "base": "Path of a saved base model",
    "basis": "Basis of a cluster (meka)",
    "beta": "Damping of labels by features in 'priority'",
    "block": "Maximum rows of a kernel tile (exact)",
    "center": "Center kernels and labels",
    "class_features": "Features of classes",
    "class_similarity": "Similarity of the labels",
    "class_weight": "Class weights: balanced or none",
    "clusters": "Clusters of the rows (meka, best)",
    "combination": "Combination of label and feature proximity",
    "combine": "Combine",
    "constraint": "Constraint of 'mix'",
    "correlation": "Weight of the correlation of labels",
    "decoder": "Rule that selects labels: f1@5, recall>=0.9, ...",
    "distances": "Distance: l1, l2, chi2 or auto",
    "dropout": "Probability of dropping a label",
    "dual": "Solve for documents instead of words",
    "epsilon": "Half-width of the tube without loss",
    "eta": "Fraction of links set to zero (meka)",
    "extra": "Additional random columns (krylov)",
    "fit_rows": "Maximum rows that fit the low-rank kernel",
    "form": "Problem",
    "frame": "Frame of the loss",
    "gamma": "Factor on the distances of kernel product",
    "hierarchy": "CSV file with lines parent,child of labels",
    "impute": "Missing values: mean, median, zero, +indicator",
    "intercept": "Add the label means to the scores",
    "kernel": "Kernel: linear, rbf, laplacian, ...",
    "label_bandwidth": "Parameter tau of the label proximity",
    "label_kernel": "Kernel of the labels",
    "label_projection": "Label method of the scheme 'projection'",
    "label_rank": "Coordinates of the scheme 'projection'",
    "label_ridge": "Ridge of the labels (default: smallest --ridge)",
    "label_sets": "Learn label sets and probabilities",
    "label_share": "Weight of the labels in 'priority'",
    "landmarks": "Landmarks",
    "link": "Links between clusters (meka)",
    "local": "Neighbor that sets the scale of 'local' weights",
    "loss": "Loss; others: l1, l4/3, l3/2",
    "max_iter": "Maximum number of iterations",
    "memory": "Maximum bytes of the factor with --rank auto",
    "method": "Method, see dmo methods",
    "metric": "Distance of neighbors",
    "mixing": "Weight of the labels in the objective",
    "n_components": "Dimensions of the embedding",
    "n_landmarks": "Random samples to which similarities are features",
    "n_neighbors": "Number of neighbors",
    "n_repelled": "Number of neighbors in other classes",
    "neighbors": "Neighbors",
    "p": "Order of 'minkowski'",
    "path": "Folder or URL of kernels with --storage stored",
    "penalty": "Weight of the within-class scatter",
    "precision": "Precision of the kernel",
    "prior_power": "Divide scores by label frequency to this power",
    "propensity": "Divide scores by label propensities",
    "random_state": "Random seed",
    "rank": "Number of landmarks or columns",
    "regularization": "Ridge of the reconstruction weights",
    "repulsion": "Weight of neighbors in other classes",
    "ridge": "Strength of the regularization",
    "rounds": "Number of label enrichments",
    "scale": "Scaling",
    "scaled": "Multiply coordinates by root eigenvalues",
    "scheme": "Label proximity",
    "search": "Search for neighbors",
    "selection": "Choice of neighbors by",
    "sharpness": "Decrease of the weights with the distance",
    "shrinkage": "Shrinkage of the constraint of MDDM",
    "sigma": "Apply a logistic function to every label",
    "similarity": "Similarity of label sets in 'bits'",
    "smoothness": "Weight of the smoothness on the graph",
    "solver": "Solver of the low-rank system",
    "standardize": "Standardize scores of labels to this power",
    "steps": "Maximum number of steps (krylov)",
    "storage": "Kernels: memory, resident, recomputed, stored",
    "strength": "Weight of the restoration",
    "supervised": "Supervised method of 'mix'",
    "target_scale": "Units of the targets",
    "targets": "Type of the targets",
    "tau": "Parameter tau of 'inverse' edge weights",
    "tol": "Relative residual at which the solver stops",
    "unsupervised": "Unsupervised method of 'mix'",
    "variance": "Fraction of variance kept by a PCA step",
    "visual": "Weight of the feature distances",
    "weight": "Edge weights: gaussian, local, cosine, ...",
    "weighted": "Divide by the label counts of the samples",
    "weighting": "Neighbor weights",
    "weights": "View weights: equal, tagprop, alignment",
    "CoupledSVR.tol": "Relative duality gap at which the solver stops",
    "FastTag.base": "Path of a saved ridge regression",
    "KGHA.n_components": "Dimensions, or fraction of the number of labels",
    "KGHA.solver": "Solver",
    "LLTSVR.tol": "Relative duality gap at which the solver stops",
    "LabelPropagation.method": "Method",
    "MESD.tol": "Relative error to reach with --rank auto",
    "MOPE.center": "Subtract the mean of the features",
    "MOPE.constraint": "Matrix with orthonormal columns",
    "MORP.center": "Center both kernels",
    "MultiSetCCA.center": "Center the kernels",
    "MultiSetCCA.solver": "Solver",
    "MultiViewRidge.tol": "Relative error to reach with --rank auto",
    "NeighborVotes.sharpness": "Weight of the scores of the base model",
    "TwoPassKNN.n_neighbors": "Number of neighbors with each label",
}
"""Short help texts of estimator options, by parameter or by class and parameter.

Parameters without a short text are described by the first sentence of their documentation."""
