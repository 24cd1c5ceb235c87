// Makes tokenizer.json and cases.json of this folder: a small byte-level BPE, and texts with the ids that the rules give.
//
//     node tests/text/hf/make.mjs
//
// The encoder here is the plain statement of the rules: added tokens by the longest match, form C by String.normalize, the
// pattern by this language's regular expressions, merges by trying the lowest rank again and again.
import { writeFileSync } from "node:fs";

const folder = new URL(".", import.meta.url).pathname;
const pattern =
    /(?:'[sS\u017f]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+/gu;
const written =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
// \s here is JavaScript's, which has U+FEFF and lacks U+0085: texts below avoid both.

const letters = [];
for (let b = 0, next = 256; b < 256; b++) {
    const plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    letters.push(String.fromCodePoint(plain ? b : next++));
}
const spell = (text) => Array.from(Buffer.from(text, "utf8"), (b) => letters[b]);
const pieces = (text) => Array.from(text.normalize("NFC").matchAll(pattern), (m) => m[0]);

const corpus = [
    "A token is a piece of text. The tokens that the model reads and the tokens that it writes are numbers; the text of a number is in a table. " +
        "When the engine reads a prompt, it cuts the text into pieces, and each piece into tokens, always the same way. " +
        "The experts of a layer are read from the drive when the router asks for them; what every token needs stays in memory. " +
        "Nothing is allocated while the model runs, and nothing that was planned is missing. The plan is printed before anything is read. ",
    "The quick brown fox doesn't jump; we've seen it, they're sure. I'll say I'm done. 12345 67.89\r\n\r\n",
    "Zürich, café, naïve, coöperate, Ångström, Việt Nam, ﬁne. Привет, мир! 你好，世界。日本語のテキスト。 안녕하세요 한국어 🙂🙂👍🏽 ",
    "{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": \"object\"}}}\n",
    "    if (x == 0) {\n        return x + 1;\n    }\n\n\n\t\tfor (;;) {}\n",
].join("\n");

function train(text, count) {
    const words = new Map();
    for (const p of pieces(text)) words.set(p, (words.get(p) ?? 0) + 1);
    const list = Array.from(words, ([w, n]) => [spell(w), n]);
    const merges = [];
    while (merges.length < count) {
        const pairs = new Map();
        for (const [w, n] of list)
            for (let i = 0; i + 1 < w.length; i++) pairs.set(w[i] + " " + w[i + 1], (pairs.get(w[i] + " " + w[i + 1]) ?? 0) + n);
        let best = null;
        for (const [k, n] of pairs) if (n > 1 && (!best || n > best[1] || (n === best[1] && k < best[0]))) best = [k, n];
        if (!best) break;
        merges.push(best[0]);
        const [a, b] = best[0].split(" ");
        for (const [w] of list)
            for (let i = 0; i + 1 < w.length; i++) if (w[i] === a && w[i + 1] === b) w.splice(i, 2, a + b);
    }
    return merges;
}

const merges = train(corpus, 500);
const vocab = {};
for (const l of letters) vocab[l] = Object.keys(vocab).length;
for (const m of merges) {
    const joined = m.replace(" ", "");
    if (!(joined in vocab)) vocab[joined] = Object.keys(vocab).length;
}
const names = [
    ["<|endoftext|>", true], ["<|im_start|>", true], ["<|im_end|>", true], ["<|vision_pad|>", true], ["<tool_call>", false],
    ["</tool_call>", false], ["<think>", false], ["</think>", false], ["<tool_response>", false], ["<think>er", false],
];
let id = Object.keys(vocab).length;
const added = names.map(([content, special]) => ({
    id: id++, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special,
}));
const tokenizer = {
    version: "1.0", truncation: null, padding: null, added_tokens: added, normalizer: { type: "NFC" },
    pre_tokenizer: {
        type: "Sequence",
        pretokenizers: [
            { type: "Split", pattern: { Regex: written }, behavior: "Isolated", invert: false },
            { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false },
        ],
    },
    post_processor: { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false },
    decoder: { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false },
    model: {
        type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: "", end_of_word_suffix: "", fuse_unk: false,
        byte_fallback: false, vocab, merges,
    },
};
writeFileSync(folder + "tokenizer.json", JSON.stringify(tokenizer, null, 1) + "\n");

const ranks = new Map(merges.map((m, i) => [m, i]));
function mergePiece(piece) {
    const w = spell(piece);
    for (;;) {
        let at = -1, rank = Infinity;
        for (let i = 0; i + 1 < w.length; i++) {
            const r = ranks.get(w[i] + " " + w[i + 1]);
            if (r !== undefined && r < rank) [at, rank] = [i, r];
        }
        if (at < 0) return w.map((x) => vocab[x]);
        w.splice(at, 2, w[at] + w[at + 1]);
    }
}
const plain = (text) => pieces(text).flatMap(mergePiece);
const longest = [...added].sort((a, b) => b.content.length - a.content.length);
function encode(text, special) {
    if (!special) return plain(text);
    const out = [];
    let from = 0;
    for (let i = 0; i < text.length;) {
        const a = longest.find((x) => text.startsWith(x.content, i));
        if (!a) {
            i++;
            continue;
        }
        out.push(...plain(text.slice(from, i)), a.id);
        from = i += a.content.length;
    }
    return [...out, ...plain(text.slice(from))];
}

let seed = 12345;
const random = (n) => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) % 65536 % n;
const pool = [
    "a", "B", "'s", "'LL", "'ſ", "'", " ", "  ", "\n", "\r\n", "\t", "7", "½", "²", "é", "e\u0301", "u\u0308\u0304", "ﬁ", "Å", "\u212b", "한", "\u1112\u1161\u11ab",
    "が", "か\u3099", "，", "🙂", "\u00a0", "\u2028", "\u3000", "\u0323", "\u0307\u0323", "q\u0307\u0323", "<think>", "<|im_end|>", "<th", "{", "\"", "_", "return",
    "\u0344", "\u0958", "\u2adc", "𝅗𝅥", "\u{1d15e}", "the ", "Việt", "\u09c7\u09be", "١", "\u0000", "\u007f",
];
const texts = [
    "", "Hello", "Hello, world!", "<|im_start|>user\nHello<|im_end|><|im_start|>assistant\n<think></think>", "<think>er<think>", "don't DON'T we'Ve",
    "x  y   z    ", "\n\n \n a", "1234567", "cafe\u0301 caf\u00e9", "\u1112\u1161\u11ab\u1100\u1173\u11af 한글", "a\u0301\u0323 \u1ea1\u0301", "no\u0338t≠",
    corpus.slice(0, 500), corpus.slice(-400), "a".repeat(300), " ".repeat(200) + "x", "é".repeat(100), "\u0301".repeat(70) + "\u0323".repeat(70) + "\u0301",
];
for (let i = 0; i < 250; i++) texts.push(Array.from({ length: 1 + random(14) }, () => pool[random(pool.length)]).join(""));
const cases = texts.map((text) => ({ text, ids: encode(text, false), special_ids: encode(text, true) }));

const forms = [];
for (let i = 0; i < 400; i++) {
    let s = "";
    for (let k = 0, n = 1 + random(8); k < n; k++) {
        const where = [[0x41, 60], [0xc0, 0x1c0], [0x300, 0x70], [0x591, 0x60], [0x900, 0x80], [0xac00, 11172], [0x1100, 0x100], [0x1e00, 0x100], [0xf900, 0x200], [0x1d150, 0x20], [0x11080, 0x60], [0xe30, 0x30]][random(12)];
        s += String.fromCodePoint(where[0] + random(where[1]));
    }
    forms.push([s, s.normalize("NFC")]);
}
writeFileSync(folder + "cases.json", JSON.stringify({ cases, nfc: forms }, null, 0) + "\n");
console.log(merges.length, "merges,", cases.length, "cases");
