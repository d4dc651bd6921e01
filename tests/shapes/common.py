"""What the three protocols' generators and judges share: texts, counts, opaque contents."""

import base64
import json
import re
import struct
import zlib
from dataclasses import dataclass, field

# Each is one token of the public encodings, with the space in front of it.
WORDS = (
    "the level gate river weir water pump valve flow north south east west upper lower main list open close check count value index "
    "total error parse config cache token test build file line path name read write call result state event time day week night "
    "system order price market store house field road bridge city people group number table window door light power energy report "
    "station model change version update server client request response message content source target input output start end first "
    "last next small large high low new old good long short"
).split()
PIECE = re.compile(r"[A-Za-z]+|\d{1,3}|[^\sA-Za-z\d]+")
FRAME_TOKENS = 3


def tokens(text):
    """A lower bound for the tokens of a text: words, groups of three digits and runs of signs."""
    return sum(1 for _ in PIECE.finditer(text))


def texts(value, skip=()):
    """Tokens of all strings in a value. Members in `skip` count as nothing, whatever they hold."""
    if isinstance(value, str):
        return tokens(value)
    if isinstance(value, list):
        return sum(texts(inner, skip) for inner in value)
    if isinstance(value, dict):
        return sum(texts(inner, skip) for name, inner in value.items() if name not in skip)
    return 0


def canonical(value, skip=()):
    def clean(inner):
        if isinstance(inner, list):
            return [clean(one) for one in inner]
        if isinstance(inner, dict):
            return {name: clean(one) for name, one in inner.items() if name not in skip}
        return inner

    return json.dumps(clean(value), sort_keys=True, separators=(",", ":"))


@dataclass
class Conversation:
    """A conversation as an agent sends it, request by request."""

    protocol: str
    seed: int
    model: str
    shapes: tuple
    # Members of each request other than the messages.
    head: dict = field(default_factory=dict)
    # Makes the head of the request with this number, if it changes.
    volatile: object = None
    # Messages or items, and how many of them each request has.
    log: list = field(default_factory=list)
    cuts: list = field(default_factory=list)
    # Spans of the log that providers take whole or not at all.
    spans: list = field(default_factory=list)
    limit: int = 0
    # Base64, sealed contents and signatures: they are whole or absent.
    opaque: set = field(default_factory=set)
    # Facts that a provider keeps of what it wrote, by ids.
    facts: dict = field(default_factory=dict)
    streams: list = field(default_factory=list)

    def body(self, number):
        head = dict(self.head)
        if self.volatile:
            head = self.volatile(head, number)
        return head


class Writer:
    """Writes a conversation by a seeded source of chance."""

    def __init__(self, chance, conversation):
        self.chance = chance
        self.made = conversation
        self.serial = 0

    def number(self):
        self.serial += 1
        return self.serial

    def id(self, prefix):
        return f"{prefix}_{self.made.seed:x}x{self.number():04d}"

    def text(self, low, high):
        chance = self.chance
        words = []
        for place in range(chance.randint(low, high)):
            word = chance.choice(WORDS)
            if chance.random() < 0.06:
                word += str(chance.randint(1, 9999))
            words.append(word + ("\n" if place % 12 == 11 else ""))
        return " ".join(words)

    def result(self):
        """A tool's result: mostly short, at times long."""
        if self.chance.random() < 0.12 and "late_system" not in self.made.shapes:
            return self.text(400, 900)
        return self.text(20, 160)

    def sealed(self, low=200, high=3000):
        raw = self.chance.randbytes(self.chance.randint(low, high))
        text = base64.b64encode(raw).decode()
        self.made.opaque.add(text)
        return text

    def png(self):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        side = self.chance.choice([16, 64, 200, 512])
        # Its pixels do not matter here, its header and size do.
        pixels = self.chance.randbytes(self.chance.randint(500, 20000))
        raw = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
        text = base64.b64encode(raw).decode()
        self.made.opaque.add(text)
        return text

    def pdf(self, pages):
        kids = " ".join(f"{number + 3} 0 R" for number in range(pages))
        parts = [b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"]
        parts.append(f"2 0 obj\n<< /Type /Pages /Kids [{kids}] /Count {pages} >>\nendobj\n".encode())
        for number in range(pages):
            parts.append(f"{number + 3} 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] >>\nendobj\n".encode())
            stream = self.chance.randbytes(self.chance.randint(1000, 30000))
            parts.append(b"stream\n" + stream + b"\nendstream\n")
        parts.append(b"trailer\n<< /Root 1 0 R >>\n%%EOF\n")
        text = base64.b64encode(b"".join(parts)).decode()
        self.made.opaque.add(text)
        return text

    def add(self, *messages):
        """Adds what stays or leaves together, and gives its place."""
        begin = len(self.made.log)
        self.made.log.extend(messages)
        self.made.spans.append((begin, len(self.made.log)))
        return begin

    def cut(self):
        """The agent sends all up to here."""
        if not self.made.cuts or self.made.cuts[-1] != len(self.made.log):
            self.made.cuts.append(len(self.made.log))


def media_most(text):
    """Most tokens of an image, a sound or a document, by what providers document: 1,500 to 3,000 for
    the text of a page and some 1,600 for its image."""
    data = text.rsplit(",", 1)[-1]
    if data.startswith("JVBER"):
        return 4600 * base64.b64decode(data + "==", validate=False).count(b"/Type /Page ")
    return 1600 if len(data) < 40_000 else 6000


def length(chance, shapes):
    """How many steps a conversation has."""
    if "late_system" in shapes and chance.random() < 0.3:
        return chance.randint(150, 400)
    return chance.randint(8, 36) if chance.random() < 0.9 else chance.randint(60, 160)


def finish(writer, size, upper, head_size, requests):
    """Picks the requests that are sent, and a limit that what must stay fits."""
    made, chance = writer.made, writer.chance
    sizes = [upper(message) for message in made.log]
    joined = []
    for begin, end in sorted(made.spans):
        if joined and begin < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    largest = max(sum(sizes[begin:end]) for begin, end in joined)
    # Media may count as little or much: the limit is in between.
    total = head_size + (sum(sizes) + sum(size(message) for message in made.log)) // 2
    needed = int(1.5 * (head_size + largest)) + 600
    # What is appended to each request outgrows any limit in the end.
    low, high = (0.03, 0.3) if "late_system" in made.shapes else (0.15, 0.7)
    made.limit = max(needed, int(total * chance.uniform(low, high)))
    cuts = made.cuts
    if len(cuts) > requests:
        # The end, and others at random: a conversation is found again after a gap, too.
        cuts = sorted([*chance.sample(cuts[:-1], requests - 1), cuts[-1]])
    made.cuts = cuts
    made.streams = [chance.random() < 0.5 for _ in cuts]
    return made


# Shortest text that is looked at as opaque.
OPAQUE_CHARACTERS = 120
BASE64 = re.compile(r"^(?:data:[^,]*,)?([A-Za-z0-9+/=_-]+)$")


def opaque_fault(value, known):
    """A base64 text that nobody wrote, such as a cut one. Texts with spaces are none."""
    stack = [value]
    while stack:
        inner = stack.pop()
        if isinstance(inner, dict):
            stack.extend(inner.values())
        elif isinstance(inner, list):
            stack.extend(inner)
        elif isinstance(inner, str) and len(inner) > OPAQUE_CHARACTERS:
            found = BASE64.match(inner)
            if found and found.group(1) not in known:
                return f"an opaque text of {len(inner)} characters that was never sent"
    return None


def tool_schema(writer, properties=2):
    names = writer.chance.sample(WORDS, properties)
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": writer.text(4, 16)} for name in names},
        "required": names[:1],
    }
