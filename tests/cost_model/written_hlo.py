"""HLO text, for XLA's own parser, that is written from the graphs of TpuGraphs.

What the features of a node do not say (which operand is which, comparators, contracted axes) is chosen so that XLA
accepts it; what they do say is written down. If the featuriser then gives the features back, it reads what XLA means by
them: XLA's parser stands between the two, and checks shapes by itself.
"""

import itertools

from exla.cost_model.node_features import ELEMENT_TYPES, NODE_FEATURES
from exla.cost_model.opcodes import opcode_name

COLUMN = {name: column for column, name in enumerate(NODE_FEATURES)}
CALLS = ("reduce", "fusion", "while", "reduce-window", "select-and-scatter", "sort", "all-reduce")
SCALAR_LAST = ("reduce", "reduce-window", "select-and-scatter")


class Written:
    """One graph of TpuGraphs, by node: its operands and its text."""

    def __init__(self, node_feat, node_opcode, edge_index):
        self.features, self.edges = node_feat, edge_index
        self.opcodes = [opcode_name(o) for o in node_opcode]
        self.producers = [edge_index[edge_index[:, 0] == n, 1].tolist() for n in range(len(node_opcode))]

    def get(self, node, name):
        return int(self.features[node, COLUMN[name]])

    def list(self, node, name, count):
        return [self.get(node, f"{name}_{axis}") for axis in range(count)]

    def element_type(self, node):
        return next(name for name in ELEMENT_TYPES if self.get(node, f"shape_element_type_is_{name}"))

    def sizes(self, node):
        return [size for size in self.list(node, "shape_dimensions", 6) if size]

    def called(self, node):
        """The roots of the computations that a node calls."""
        if self.opcodes[node] not in CALLS:
            return []
        return [p for p in self.producers[node] if self.get(p, "is_root")]

    def operands(self, node):
        """Operands in an order that XLA takes, repeated where TpuGraphs has dropped a second use."""
        found = [p for p in self.producers[node] if p not in self.called(node)]
        opcode, sizes = self.opcodes[node], self.sizes(node)
        if opcode == "select":
            found.sort(key=lambda p: self.element_type(p) != "pred")
            return found + found[-1:] * (3 - len(found))
        if opcode in ("dynamic-slice", "dynamic-update-slice"):
            arrays = [p for p in found if self.sizes(p)]
            arrays.sort(key=lambda p: self.sizes(p) != sizes)
            starts = [p for p in found if not self.sizes(p)]
            return arrays + starts + starts[-1:] * (len(self.sizes(arrays[0])) - len(starts))
        if opcode == "select-and-scatter":
            return sorted(found, key=lambda p: (not self.sizes(p), self.sizes(p) != sizes))
        if opcode in SCALAR_LAST:
            arrays = [p for p in found if self.sizes(p)]
            starts = [p for p in found if not self.sizes(p)]
            return arrays + sorted(
                starts, key=lambda s: [self.element_type(a) for a in arrays].index(self.element_type(s))
            )
        if opcode == "convolution":
            fits = self.get(node, "convolution_dim_numbers_output_feature_dim")
            axis = self.get(node, "convolution_dim_numbers_kernel_output_feature_dim")
            batch = self.get(node, "convolution_dim_numbers_output_batch_dim")
            input_batch = self.get(node, "convolution_dim_numbers_input_batch_dim")
            feature = self.get(node, "convolution_dim_numbers_input_feature_dim")
            kernel_feature = self.get(node, "convolution_dim_numbers_kernel_input_feature_dim")
            for left, right in itertools.permutations(found * (3 - len(found)), 2):
                if (
                    self.sizes(right)[axis] == sizes[fits]
                    and self.sizes(left)[input_batch] == sizes[batch]
                    and self.sizes(left)[feature] == self.sizes(right)[kernel_feature]
                    and self._spatial(right, "kernel", node) == self.list(node, "window_size", len(sizes) - 2)
                ):
                    return [left, right]
        if opcode == "compare" and found[0] in self.producers[found[-1]]:
            return found[::-1]  # XLA writes operands before users, those of the first operand first
        if opcode == "dot":
            found = found * (3 - len(found))
            return found if self._contracted(*found, node) else found[::-1]
        binary = ("add", "multiply", "subtract", "divide", "maximum", "minimum", "compare", "and", "or", "power")
        if opcode in binary and len(found) == 1:
            return found * 2
        if opcode == "concatenate":
            axis = self.get(node, "dimensions_0")
            while sum(self.sizes(p)[axis] for p in found) < sizes[axis]:
                found.append(found[-1])
        if opcode == "outfeed":
            return sorted(found, key=lambda p: self.element_type(p) == "token")
        return found

    def _contracted(self, left, right, node):
        """The two axes that a product of two matrices sums over; None where these are not its operands."""
        for axes in itertools.product(range(2), repeat=2):
            sizes = [self.sizes(left)[1 - axes[0]], self.sizes(right)[1 - axes[1]]]
            if self.sizes(left)[axes[0]] == self.sizes(right)[axes[1]] and sizes == self.sizes(node):
                return axes
        return None

    def _spatial(self, operand, which, node):
        axes = self.list(node, f"convolution_dim_numbers_{which}_spatial_dims", len(self.sizes(node)) - 2)
        return [self.sizes(operand)[axis] for axis in axes]

    def shape(self, node):
        """A shape as text; what a tuple holds is not in the features, and becomes scalars."""
        kind = self.element_type(node)
        if kind == "tuple":
            count = self.get(node, "shape_tuple_shapes_size")
            if self.opcodes[node] == "infeed":
                return f"(({', '.join(['f32[]'] * 2)}), token[])"
            return f"({', '.join(['f32[]'] * count)})"
        if kind == "token":
            return "token[]"
        sizes = self.sizes(node)
        layout = ",".join(map(str, self.list(node, "layout_minor_to_major", len(sizes))))
        return f"{kind}[{','.join(map(str, sizes))}]" + (f"{{{layout}}}" if sizes else "")

    def attributes(self, node):
        """What stands after the operands."""
        opcode, sizes = self.opcodes[node], self.sizes(node)
        if opcode in ("broadcast", "reduce", "concatenate"):
            operand = self.operands(node)[0]
            result = self.sizes(node) if self.element_type(node) != "tuple" else None
            count = {"broadcast": len(self.sizes(operand)), "concatenate": 1}.get(opcode)
            if count is None:
                count = len(self.sizes(operand)) - len(result if result is not None else self.sizes(operand)[:-1])
            return f", dimensions={{{','.join(map(str, self.list(node, 'dimensions', count)))}}}"
        if opcode == "iota":
            return f", iota_dimension={self.get(node, 'dimensions_0')}"
        if opcode == "sort":
            return f", dimensions={{{self.get(node, 'dimensions_0')}}}" + ", is_stable=true" * self.get(
                node, "is_stable"
            )
        if opcode == "compare":
            return ", direction=LT"
        if opcode == "rng":
            return ", distribution=rng_uniform"
        if opcode == "custom-call":
            return ', custom_call_target="target"'
        if opcode == "slice":
            return f", slice={{{', '.join(f'[{a}:{b}]' for a, b in self._slice(node))}}}"
        if opcode == "dynamic-slice":
            return f", dynamic_slice_sizes={{{','.join(map(str, sizes))}}}"
        if opcode == "dot":
            left, right = self._contracted(*self.operands(node), node)
            return f", lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}"
        if opcode in ("reduce-window", "select-and-scatter"):
            return self._window(node, len(sizes))
        if opcode == "convolution":
            return self._window(node, len(sizes) - 2) + f", dim_labels={self._labels(node, len(sizes) - 2)}"
        if opcode == "get-tuple-element":
            return ", index=0"
        return ", replica_groups={}" if opcode == "all-reduce" else ""

    def _slice(self, node):
        """Start and limit by axis: two are features, and the sum of the others is put on the last axis."""
        sizes, starts = self.sizes(node), self.list(node, "slice_dims_start", 2)[: len(self.sizes(node))]
        starts += [0] * (len(sizes) - len(starts))
        starts[-1] += self.get(node, "slice_dims_start_sum") - sum(starts)
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def _window(self, node, axes):
        if not axes:
            return ""
        by_axis = "x".join
        low, high = (self.list(node, f"window_padding_{side}", axes) for side in ("low", "high"))
        fields = {
            "size": by_axis(map(str, self.list(node, "window_size", axes))),
            "stride": by_axis(map(str, self.list(node, "window_stride", axes))),
            "pad": by_axis(f"{a}_{b}" for a, b in zip(low, high, strict=True)),
            "lhs_dilate": by_axis(map(str, self.list(node, "window_base_dilation", axes))),
            "rhs_dilate": by_axis(map(str, self.list(node, "window_window_dilation", axes))),
            "rhs_reversal": by_axis(map(str, self.list(node, "window_window_reversal", axes))),
        }
        return f", window={{{' '.join(f'{name}={text}' for name, text in fields.items())}}}"

    def _labels(self, node, axes):
        """As "b01f_01io->b01f"."""
        prefix = "convolution_dim_numbers"

        def labelled(letters, fields, spatial):
            places = dict(zip([self.get(node, f"{prefix}_{f}_dim") for f in fields], letters, strict=True))
            return "".join(
                places[axis] if axis in places else str(spatial.index(axis)) for axis in range(axes + len(letters))
            )

        spatial = {which: self.list(node, f"{prefix}_{which}_spatial_dims", axes) for which in ("input", "kernel")}
        output = ("output_batch", "output_feature")
        rest = [axis for axis in range(axes + 2) if axis not in [self.get(node, f"{prefix}_{f}_dim") for f in output]]
        return (
            labelled("bf", ("input_batch", "input_feature"), spatial["input"])
            + "_"
            + labelled("io", ("kernel_input_feature", "kernel_output_feature"), spatial["kernel"])
            + "->"
            + labelled("bf", output, rest)
        )


def kernel_text(written):
    """A kernel of the tile collection as a module: its computations end with their roots."""
    lines, first = ["HloModule kernel"], 0
    shapes = {}
    for last in (n for n in range(len(written.opcodes)) if written.get(n, "is_root")):
        lines.append(f"{'ENTRY ' * (last == len(written.opcodes) - 1)}c{last} {{")
        for node in range(first, last + 1):
            operands = written.operands(node)
            called, attributes = written.called(node), written.attributes(node)
            shapes[node] = written.shape(node)
            if written.opcodes[node] == "tuple":
                shapes[node] = f"({', '.join(shapes[p] for p in operands)})"
            if written.opcodes[node] == "fusion":
                shapes[node] = shapes[called[0]]
                operands = _in_place_of_parameters(written, called[0], operands, shapes)
            if called:
                attributes += f", calls=c{called[0]}, kind=kLoop" if written.opcodes[node] == "fusion" else ""
                attributes += f", to_apply=c{called[0]}" if written.opcodes[node] == "reduce" else ""
            lines.append(_line(written, node, node == last, shapes[node], [f"n{p}" for p in operands], attributes))
        lines.append("}")
        first = last + 1
    return "\n".join(lines)


def rows_text(written, nodes):
    """A module in which each of some nodes stands by itself, on parameters, named as in the graph."""
    before, lines, parameters = ["HloModule rows"], [], itertools.count()
    for node in nodes:
        names = []
        for operand in written.operands(node):
            names.append(f"n{node}_{len(names)}")
            shape = written.shape(operand)
            if written.opcodes[node] == "get-tuple-element":
                shape = f"({written.shape(node)})"
            lines.append(f"  {names[-1]} = {shape} parameter({next(parameters)})")
        computations, attributes = _called(written, node)
        before.extend(computations)
        lines.append(_line(written, node, False, written.shape(node), names, written.attributes(node) + attributes))
    root = "  ROOT all = () tuple()"
    return "\n".join([*before, "ENTRY main {", *lines, root, "}"])


def _line(written, node, is_root, shape, operands, attributes):
    opcode = written.opcodes[node]
    inside = ", ".join(operands)
    if opcode == "parameter":
        inside = str(written.get(node, "parameter_number"))
    if opcode == "constant":
        inside = "{...}" if written.sizes(node) else "true" if written.element_type(node) == "pred" else "1"
    return f"  {'ROOT ' * is_root}n{node} = {shape} {opcode}({inside}){attributes}"


def _in_place_of_parameters(written, root, operands, shapes):
    """A fusion's operands in the order of the parameters of the computation that ends with `root`."""
    first = max((n + 1 for n in range(root) if written.get(n, "is_root")), default=0)
    parameters = [n for n in range(first, root) if written.opcodes[n] == "parameter"]
    left, ordered = list(operands), []
    for parameter in sorted(parameters, key=lambda n: written.get(n, "parameter_number")):
        fitting = [p for p in left if shapes[p] == shapes[parameter]]
        ordered.append((fitting or [p for p in operands if shapes[p] == shapes[parameter]])[0])
        left = [p for p in left if p != ordered[-1]]
    return ordered


def _called(written, node):
    """Computations that a node may call: as text, and the attributes that name them."""
    opcode, name = written.opcodes[node], f"c{node}"
    kinds = [written.element_type(p) for p in written.operands(node)]

    def computation(name, kinds, root):
        lines = [f"  {name}_p{k} = {kind} parameter({k})" for k, kind in enumerate(kinds)]
        return "\n".join([f"{name} {{", *lines, f"  ROOT {name}_root = {root}", "}"])

    if opcode in ("reduce", "reduce-window", "all-reduce"):
        kinds = [f"{kind}[]" for kind in kinds[: (len(kinds) + 1) // 2]] * 2
        count, shape = len(kinds) // 2, ", ".join(kinds[: len(kinds) // 2])
        root = f"({shape}) tuple({', '.join(f'{name}_p{k}' for k in range(count))})"
        if count == 1:
            root = f"{shape} {'or' if shape == 'pred[]' else 'maximum'}({name}_p0, {name}_p1)"
        return [computation(name, kinds, root)], f", to_apply={name}"
    if opcode == "sort":
        pairs = [f"{kind}[]" for kind in kinds for _ in range(2)]
        return [computation(name, pairs, f"pred[] compare({name}_p0, {name}_p1), direction=LT")], f", to_apply={name}"
    if opcode == "select-and-scatter":
        pair = [f"{kinds[0]}[]"] * 2
        select = computation(f"{name}s", pair, f"pred[] compare({name}s_p0, {name}s_p1), direction=GE")
        scatter = computation(f"{name}a", pair, f"{kinds[0]}[] add({name}a_p0, {name}a_p1)")
        return [select, scatter], f", select={name}s, scatter={name}a"
    if opcode == "while":
        shape = written.shape(node)
        body = computation(f"{name}b", [shape], f"{shape} copy({name}b_p0)")
        condition = computation(f"{name}c", [shape], "pred[] constant(false)")
        return [body, condition], f", body={name}b, condition={name}c"
    return [], ""
