"""Bytes and documents with something wrong in them, drawn by a `random.Random`."""

import copy
import json

FRAGMENTS = [
    b"", b"\0", b"\xff", b"[", b"]", b"{", b"}", b"[[", b"=", b".", b",", b"#", b"\n", b'"', b"'", b'"""', b"\\",
    b"-1", b"0", b"1e999", b"nan", b"inf", b"true", b"9223372036854775807", b"99999999999999999999", b"0.5",
    b"\xe2\x80\xae", b"\x1b[2J", b"__import__('os').system('touch executed')",
    b"cos\nsystem\n(S'touch executed'\ntR.",
    b"../../etc/passwd", b"/dev/zero", b"\x80\x04\x95", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"\x93NUMPY",
    b"(True, 3)", b"'descr': '|O'",
]
WORDS = [
    b"ranks = 3", b"ranks = 0", b"steps = 0", b"steps = 2", b"hidden = []", b"hidden = [3, 3, 3]", b"[train]",
    b"[model]", b"stages = ['zero3', 'ddp']", b"[[variant]]", b"[check]", b"[checkpoint]", b"[cluster]",
    b"order = 'exact'", b"units = 'model'", b"units = [[0, 1], [2]]", b"precision = 'fp16'", b"frozen = [0]",
    b"kind = 'transformer'", b"kind = 'collective'", b"bucket_mb = 0.001", b"offload_activations = true",
    b"recompute = true", b"heads = 2", b"same_bits_on = [1]", b"clip_norm = 0.1", b"source = 'sort'",
    b"source = 'text'", b"title = 'x'", b"layers = 1", b"width = 8", b"sequence = 4", b"learning_rate = 1e300",
    b"loss_scale = 3", b"micro_batches = 6", b"prefetch = true", b"overlap = true", b"dropout = 0.5",
]
LEAVES = [
    None, True, False, -1, 0, 1, 2, 3, 7, 2**31, 2**62, 2**63 - 1, 2**70, -(2**63), 1.5, -0.0, 1e308, "", "x",
    "weights", "../x", "/dev/zero", "a\0b", "\u202e", "F32", "F64", [], [[]], [1], [2**40, 2**40], {}, {"a": 1},
    [[[[[]]]]],
]
VALUES = [each for each in FRAGMENTS if each] + [each.split(b"= ")[-1] for each in WORDS]


def bytes_of(random, content):
    """`content` with one to three wounds: bits flipped, a piece cut or doubled, something set in, an end torn off."""
    content = bytearray(content)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(content) + 1)
        to = min(at + random.choice([1, 1, 2, 4, 8, 30, 200]), len(content))
        match random.randrange(7):
            case 0:
                for place in range(at, to):
                    content[place] ^= 1 << random.randrange(8)
            case 1:
                del content[at:to]
            case 2:
                content[at:at] = content[at:to] * random.choice([1, 2, 50])
            case 3:
                content[at:to] = random.choice(FRAGMENTS)
            case 4:
                content[at:at] = random.choice(FRAGMENTS) * random.choice([1, 1, 1, 2, 1000])
            case 5:
                del content[at:]
            case 6:
                content[at:to] = random.randbytes(to - at)
    return bytes(content)


def lines_of(random, content):
    """A text with lines cut, doubled, moved or set in; sometimes bytes are wounded instead, or too."""
    lines = content.split(b"\n")
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(lines) + 1)
        match random.randrange(4):
            case 0:
                del lines[at : at + 1]
            case 1:
                lines[at:at] = lines[at : at + 1] * random.choice([1, 2, 50])
            case 2:
                lines.insert(at, random.choice(WORDS))
            case 3:
                if at < len(lines) and b"=" in lines[at]:
                    lines[at] = lines[at].split(b"=")[0] + b"= " + random.choice(VALUES)
    found = b"\n".join(lines)
    return bytes_of(random, found) if random.random() < 0.25 else found


def document_of(random, document):
    """JSON with one to three of its values replaced, or left out."""
    document = json.loads(json.dumps(document))
    for _ in range(random.randint(1, 3)):
        found = [path for path in places(document) if path]
        if not found:
            return document
        *way, last = random.choice(found)
        there = document
        for key in way:
            there = there[key]
        if random.random() < 0.2:
            del there[last]
        else:
            there[last] = copy.deepcopy(random.choice(LEAVES))
    return document


def places(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))
