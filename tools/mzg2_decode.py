#!/usr/bin/env python3
"""Decodes experts of a layer file of the compressed expert store, independently of the C code.

    mzg2_decode.py LAYER.mzg2 [--expert N] [--slot | --source] [--out FILE]

Checks every CRC, state, word count and tile hash on the way and prints the SHA-256 of what it decoded: of the canonical
source bytes of all experts, which must be the header's, or of one expert.  --out writes the bytes instead (--slot: in
slot layout).  A plain loop over docs/formats.md, so slow: a few hundred kilobytes a second.
"""

import argparse
import hashlib
import struct
import sys
import zlib

LANES, PAIR_BITS, SCALE_BITS, MASK = 32, 12, 8, 0xFFFFFFFF


class Bad(Exception):
    pass


def need(ok, what):
    if not ok:
        raise Bad(what)


def expand(freq, bits):
    need(sum(freq) == 1 << bits and max(freq) < 1 << bits, "a table's frequencies")
    out, start = [], 0
    for symbol, f in enumerate(freq):
        out += [(symbol, f, i) for i in range(f)]
        start += f
    return out


class Layer:
    def __init__(self, path):
        self.data = d = memoryview(open(path, "rb").read())
        h = struct.unpack("<4sHHIIIIIIIIIIIIQ", d[:64])
        (magic, version, flags, self.layer, self.experts, self.hidden, self.inner, pb, psb, tables_at, tables_len,
         index_at, index_len, self.first, sets, length) = h
        need(magic == b"MZG2" and version == 1 and flags == 1 and sets == 3, "header")
        need((pb, psb) == (PAIR_BITS, SCALE_BITS) and length == len(d), "header")
        need(zlib.crc32(d[:508]) == struct.unpack("<I", d[508:512])[0], "header CRC")
        self.source_sha, self.canonical_sha = bytes(d[64:96]), bytes(d[96:128])
        tables = d[tables_at:tables_at + tables_len]
        need(zlib.crc32(tables[:-4]) == struct.unpack("<I", tables[-4:])[0], "tables CRC")
        self.sets, at = {}, 0
        for kind in ("w1", "w3", "w2"):
            count, classes, e_base, zero = tables[at:at + 4]
            need(1 <= count <= 16 and classes == 8 and zero == 0, "table set")
            nmap = struct.unpack("<256I", tables[at + 4:at + 1028])
            at += 1028
            parsed = []
            for i in range(count + 8):
                freq = struct.unpack("<256H", tables[at:at + 512])
                parsed.append(expand(freq, PAIR_BITS if i < count else SCALE_BITS))
                at += 512
            self.sets[kind] = (e_base, nmap, parsed[:count], parsed[count:])
        need(at + 4 == tables_len, "tables length")
        index = d[index_at:index_at + index_len]
        need(len(index) == 32 * self.experts + 4, "index length")
        need(zlib.crc32(index[:-4]) == struct.unpack("<I", index[-4:])[0], "index CRC")
        self.index = [struct.unpack("<QIII", index[32 * e:32 * e + 20]) for e in range(self.experts)]

    def order(self):
        """Matrix and tile number, in tile order."""
        for t in range(self.inner // 32):
            yield "w1", t
            yield "w3", t
        for t in range(self.hidden // 32):
            yield "w2", t

    def tiles(self, expert):
        """Slot images of the tiles of an expert, in tile order."""
        offset, stored, payload, crc = self.index[expert]
        block = self.data[offset:offset + stored]
        need(offset % 4096 == 0 and stored % 4096 == 0 and payload + 1152 <= stored, "index entry")
        need(zlib.crc32(block[:payload]) == crc, "payload CRC")
        magic, number, count, length = struct.unpack("<4sIII", block[:16])
        order = list(self.order())
        need(magic == b"MZGB" and number == expert and count == len(order) and length == payload, "block head")
        at = 16 + 12 * count
        half_h, half_i = self.hidden // 2, self.inner // 2
        columns = {"w1": block[at:at + half_h], "w3": block[at + half_h:at + 2 * half_h],
                   "w2": block[at + 2 * half_h:at + 2 * half_h + half_i]}
        for i, (kind, _) in enumerate(order):
            start, size, want = struct.unpack("<III", block[16 + 12 * i:28 + 12 * i])
            groups = (self.inner if kind == "w2" else self.hidden) // 32
            raw, size = size >> 31, size & 0x7FFFFFFF
            need(start % 16 == 0 and start + size <= payload, f"tile {i}: place")
            image = bytes(block[start:start + size])
            if not raw:
                image = self.decode(kind, groups, columns[kind], image, i)
            need(len(image) == 544 * groups and tile_hash(image, groups) == want, f"tile {i}: hash")
            yield image

    def decode(self, kind, groups, columns, data, number):
        e_base, nmap, nibble, scale = self.sets[kind]
        rows, x = data[:LANES], list(struct.unpack("<32I", data[LANES:160]))
        words = iter(struct.unpack(f"<{(len(data) - 160) // 2}H", data[160:]))
        need(min(x) >= 65536, f"tile {number}: first state")
        image, scales = bytearray(512 * groups), bytearray(32 * groups)

        def step(lane, table, bits):
            symbol, freq, rest = table[x[lane] & ((1 << bits) - 1)]
            x[lane] = freq * (x[lane] >> bits) + rest
            if x[lane] < 65536:
                x[lane] = x[lane] << 16 | next(words)
            return symbol

        try:
            for g in range(groups):
                maps = []
                for lane in range(LANES):
                    c = rows[lane] & 7
                    s = step(lane, scale[c], SCALE_BITS)
                    scales[g * 32 + lane] = (e_base + (rows[lane] >> 3) + s) & 255
                    maps.append(nmap[c * 32 + min(s, 31)])
                for k in range(16):
                    digit = 4 * columns[16 * g + k]
                    for lane in range(LANES):
                        image[(g * 32 + lane) * 16 + k] = step(lane, nibble[maps[lane] >> digit & 15], PAIR_BITS)
        except StopIteration:
            raise Bad(f"tile {number}: words are missing") from None
        need(next(words, None) is None, f"tile {number}: words are left over")
        need(all(v == 65536 for v in x), f"tile {number}: last state")
        return bytes(image + scales)

    def source(self, expert):
        """Canonical source bytes: w1 packed, w1 scale, w2 ..., w3 ..., row-major."""
        parts = {k: [[], []] for k in ("w1", "w2", "w3")}
        for (kind, _), image in zip(self.order(), self.tiles(expert)):
            groups = len(image) // 544
            for row in range(32):
                parts[kind][0] += [image[(g * 32 + row) * 16:(g * 32 + row) * 16 + 16] for g in range(groups)]
                parts[kind][1].append(bytes(image[512 * groups + g * 32 + row] for g in range(groups)))
        return b"".join(b"".join(p) for k in ("w1", "w2", "w3") for p in parts[k])


def tile_hash(image, groups):
    total = 0
    for lane in range(LANES):
        h = 0x9E3779B1 ^ lane
        for g in range(groups):
            at = (g * 32 + lane) * 16
            for w in (image[512 * groups + g * 32 + lane],) + struct.unpack("<4I", image[at:at + 16]):
                h = ((h ^ w) * 0x85EBCA6B) & MASK
                h ^= h >> 15
        total ^= (h << lane | h >> (32 - lane)) & MASK if lane else h
    return total


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("layer")
    p.add_argument("--expert", type=int)
    p.add_argument("--slot", action="store_true", help="slot layout instead of source order")
    p.add_argument("--out", help="write the decoded bytes to this file")
    a = p.parse_args()
    try:
        layer = Layer(a.layer)
        experts = range(layer.experts) if a.expert is None else [a.expert]
        need(all(0 <= e < layer.experts for e in experts), f"expert: the file has {layer.experts}")
        sha, out = hashlib.sha256(), open(a.out, "wb") if a.out else None
        for e in experts:
            data = b"".join(layer.tiles(e)) if a.slot else layer.source(e)
            sha.update(data)
            if out:
                out.write(data)
        if out:
            out.close()
        if a.expert is None and not a.slot:
            need(sha.digest() == layer.canonical_sha, "SHA-256 of the canonical bytes")
    except (Bad, OSError, struct.error, IndexError) as e:
        print(f"{a.layer}: {e}", file=sys.stderr)
        return 1
    print(f"{sha.hexdigest()}  {len(experts)} experts decoded, all checks hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
