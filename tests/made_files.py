"""Files that several test modules make: ONNX models, stories of Reuters' SGML."""


def field(number, value):
    """One field of a protocol buffer: integers and length-delimited bytes are all that an ONNX file needs."""

    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def onnx_model(path, channels=3, side=16, operator="GlobalAveragePool"):
    """An ONNX file with one node: the mean of every channel."""

    def tensor(name, shape):
        dims = b"".join(field(1, field(1, size)) for size in shape)
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))

    node = field(1, "x") + field(2, "y") + field(4, operator)
    x, y = tensor("x", (1, channels, side, side)), tensor("y", (1, channels, 1, 1))
    graph = field(1, node) + field(2, "g") + field(11, x) + field(12, y)
    path.write_bytes(field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13)))
    return path


def story(number, topics, body, lewis="TRAIN", has="YES", title="A TITLE"):
    marked = "".join(f"<D>{topic}</D>" for topic in topics)
    return (
        f'<REUTERS TOPICS="{has}" LEWISSPLIT="{lewis}" CGISPLIT="TRAINING-SET" OLDID="1" NEWID="{number}">\n'
        f"<DATE>26-FEB-1987</DATE>\n<TOPICS>{marked}</TOPICS>\n<PLACES><D>usa</D></PLACES>\n<TEXT>&#2;\n"
        f"<TITLE>{title}</TITLE>\n<DATELINE> X - </DATELINE><BODY>{body}\n&#3;</BODY></TEXT>\n</REUTERS>\n"
    )
