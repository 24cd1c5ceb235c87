"""Byte pair encoding: learning merges from texts, and encoding by them."""
import collections

# Bytes that print come first, so that a vocabulary is readable.
BYTES = [b for b in range(256) if 0x21 <= b <= 0x7E or (b >= 0xA1 and b != 0xAD)]
BYTES += [b for b in range(256) if b not in set(BYTES)]


def byte_tokens():
    return [bytes([b]) for b in BYTES]


def join(parts, pair):
    """The parts with every occurrence of the pair joined, from the left."""
    out, at = [], 0
    while at < len(parts):
        if parts[at:at + 2] == list(pair):
            out.append(pair[0] + pair[1])
            at += 2
        else:
            out.append(parts[at])
            at += 1
    return out


def learn(texts, pattern, size):
    """Merges in order until bytes and joined tokens are `size`; fewer if no pair is left that occurs twice."""
    pieces = collections.Counter()
    for text in texts:
        pieces.update(m.group().encode() for m in pattern.finditer(text))
    counts = list(pieces.values())
    words = [[bytes([b]) for b in piece] for piece in pieces]
    pairs, where = collections.Counter(), collections.defaultdict(set)

    def count(i, sign):
        for pair in zip(words[i], words[i][1:]):
            pairs[pair] += sign * counts[i]
            where[pair].add(i)

    for i in range(len(words)):
        count(i, 1)
    merges, tokens = [], set(byte_tokens())
    while len(tokens) < size:
        pair = max(pairs, key=lambda p: (pairs[p], p), default=None)
        if pair is None or pairs[pair] < 2:
            break
        for i in where.pop(pair):
            count(i, -1)
            words[i] = join(words[i], pair)
            count(i, 1)
        del pairs[pair]
        merges.append(pair)
        tokens.add(pair[0] + pair[1])
    return merges


def vocabulary(merges):
    """Tokens in order of their ids: bytes, then what the merges make."""
    seen = dict.fromkeys(byte_tokens())
    seen.update(dict.fromkeys(a + b for a, b in merges))
    return list(seen)


class Encoder:
    """Encodes text without control tokens; `rank(left, right)` gives the order of a merge, or None."""

    def __init__(self, ids, rank, pattern, normalize=None):
        self.ids, self.rank, self.pattern, self.normalize = ids, rank, pattern, normalize
        self.pieces = {}

    def piece(self, data):
        parts = [bytes([b]) for b in data]
        while len(parts) > 1:
            best = None
            for pair in zip(parts, parts[1:]):
                rank = self.rank(*pair)
                if rank is not None and (best is None or rank < best[0]):
                    best = rank, pair
            if best is None:
                break
            parts = join(parts, best[1])
        return [self.ids[p] for p in parts]

    def encode(self, text):
        if self.normalize:
            text = self.normalize(text)
        out = []
        for m in self.pattern.finditer(text):
            piece = m.group()
            ids = self.pieces.get(piece)
            if ids is None:
                ids = self.piece(piece.encode())
                if len(self.pieces) < 400000:
                    self.pieces[piece] = ids
            out += ids
        return out
