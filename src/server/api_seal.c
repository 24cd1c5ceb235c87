/* api_seal.c: random ids, signatures and sealed texts of api_write.h, on libcrypto.
 *
 * A signature is HMAC-SHA-256 in base64.  A sealed text is base64url of: version byte 1, 12 random bytes, the
 * ciphertext, 16 bytes of tag (AES-256-GCM, the version byte authenticated too).  Both keys come from one by HMAC, so
 * that neither use tells anything about the other.
 *
 * Threads: pure functions but for the system's random source.
 */
#include "server/api_write.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "io/file.h"

enum { SEAL_VERSION = 1, NONCE_BYTES = 12, TAG_BYTES = 16, DIGEST_BYTES = 32 };

bool ms_api_random_id(char *out, size_t size, const char *prefix) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    enum { LETTERS = 24 };
    uint8_t random[LETTERS * 8];
    size_t used = strlen(prefix);
    if (size < used + LETTERS + 1 || RAND_bytes(random, sizeof random) != 1) return false;
    memcpy(out, prefix, used);
    for (size_t i = 0; i < LETTERS; i++) {
        uint64_t v;
        memcpy(&v, random + i * 8, 8); /* 64 bits for one of 62: the bias is far below any use */
        out[used + i] = letters[v % (sizeof letters - 1)];
    }
    out[used + LETTERS] = 0;
    return true;
}

/* ------------------------------------------------------------------ base64 */

static const char alphabet[2][65] = {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
                                     "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"};

static void put_base64(ms_text *out, const uint8_t *s, size_t n, bool url) {
    const char *letters = alphabet[url];
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t v = (uint32_t)s[i] << 16 | (have > 1 ? (uint32_t)s[i + 1] << 8 : 0) | (have > 2 ? s[i + 2] : 0u);
        char four[4] = {letters[v >> 18], letters[v >> 12 & 63], have > 1 ? letters[v >> 6 & 63] : '=',
                        have > 2 ? letters[v & 63] : '='};
        ms_text_append(out, four, url ? have + 1 : 4);
    }
}

/* base64url without padding; NULL: not one, or no memory. */
static uint8_t *read_base64url(const char *s, size_t len, size_t *n) {
    *n = len / 4 * 3 + (len % 4 ? len % 4 - 1 : 0);
    uint8_t *out = len % 4 == 1 ? NULL : malloc(*n + 1);
    if (!out) return NULL;
    uint32_t v = 0;
    size_t at = 0;
    for (size_t i = 0; i < len; i++) {
        const char *letter = s[i] ? strchr(alphabet[1], s[i]) : NULL;
        if (!letter) {
            free(out);
            return NULL;
        }
        v = v << 6 | (uint32_t)(letter - alphabet[1]);
        if (i % 4 == 0) continue;
        unsigned spare = 6 - 2 * (unsigned)(i % 4); /* bits of v that belong to the next byte */
        out[at++] = (uint8_t)(v >> spare);
    }
    return out;
}

/* ------------------------------------------------------------------ signatures */

static bool digest(uint8_t out[DIGEST_BYTES], const uint8_t *key, const char *s, size_t len) {
    unsigned n = 0;
    return HMAC(EVP_sha256(), key, MS_API_KEY_BYTES, (const uint8_t *)(len ? s : ""), len, out, &n) &&
           n == DIGEST_BYTES;
}

bool ms_api_machine_key(uint8_t key[MS_API_KEY_BYTES], const char *id_file) {
    enum { ID_DIGITS = 32 }; /* as systemd writes it */
    char *id = NULL, use[64];
    size_t len = 0;
    bool known = ms_file_read_all(id_file, 256, &id, &len, NULL) == MS_OK && len >= ID_DIGITS &&
                 strspn(id, "0123456789abcdef") == ID_DIGITS;
    (void)snprintf(use, sizeof use, "moonshine reasoning of user %lu", (unsigned long)getuid());
    /* The id itself never leaves: what is made with it cannot be turned back. */
    bool good = known ? digest(key, (const uint8_t *)id, use, strlen(use)) : RAND_bytes(key, MS_API_KEY_BYTES) == 1;
    free(id);
    return good;
}

static bool derived(uint8_t out[DIGEST_BYTES], const uint8_t *key, const char *use) {
    return digest(out, key, use, strlen(use));
}

void ms_api_sign(ms_text *out, const uint8_t key[MS_API_KEY_BYTES], const char *s, size_t len) {
    uint8_t own[DIGEST_BYTES], sum[DIGEST_BYTES];
    if (derived(own, key, "signature") && digest(sum, own, s, len))
        put_base64(out, sum, sizeof sum, false);
    else
        out->failed = true;
}

bool ms_api_sign_good(const uint8_t key[MS_API_KEY_BYTES], const char *s, size_t len, const char *sign,
                      size_t sign_len) {
    ms_text right = {0};
    ms_api_sign(&right, key, s, len);
    bool good = !right.failed && right.len == sign_len && CRYPTO_memcmp(right.data, sign, sign_len) == 0;
    ms_text_free(&right);
    return good;
}

/* ------------------------------------------------------------------ sealed texts */

/* in[0..n) to out[0..n); tag: written when sealing, checked when opening. */
static bool gcm(bool sealing, const uint8_t *key, const uint8_t *nonce, const uint8_t *in, int n, uint8_t *out,
                uint8_t *tag) {
    static const uint8_t version = SEAL_VERSION;
    uint8_t own[DIGEST_BYTES], rest[TAG_BYTES];
    int done = 0, more = 0, mode = sealing;
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    bool good =
        c && derived(own, key, "seal") && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, own, nonce, mode) == 1 &&
        EVP_CipherUpdate(c, NULL, &done, &version, 1) == 1 && (!n || EVP_CipherUpdate(c, out, &done, in, n) == 1) &&
        (sealing || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, tag) == 1) &&
        EVP_CipherFinal_ex(c, rest, &more) == 1 &&
        (!sealing || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_BYTES, tag) == 1);
    EVP_CIPHER_CTX_free(c);
    return good;
}

enum { SEAL_EXTRA = 1 + NONCE_BYTES + TAG_BYTES };

void ms_api_seal(ms_text *out, const uint8_t key[MS_API_KEY_BYTES], const char *s, size_t len) {
    uint8_t *blob = len < INT_MAX - SEAL_EXTRA ? malloc(len + SEAL_EXTRA) : NULL;
    if (!blob) {
        out->failed = true;
        return;
    }
    uint8_t *nonce = blob + 1, *body = nonce + NONCE_BYTES;
    blob[0] = SEAL_VERSION;
    if (RAND_bytes(nonce, NONCE_BYTES) == 1 && gcm(true, key, nonce, (const uint8_t *)s, (int)len, body, body + len)) {
        put_base64(out, blob, len + SEAL_EXTRA, true);
    } else {
        out->failed = true;
    }
    free(blob);
}

bool ms_api_unseal(ms_text *out, const uint8_t key[MS_API_KEY_BYTES], const char *blob, size_t len) {
    size_t n;
    uint8_t *raw = len < INT_MAX ? read_base64url(blob, len, &n) : NULL;
    bool good = raw && n >= SEAL_EXTRA && raw[0] == SEAL_VERSION;
    uint8_t *text = good ? malloc(n) : NULL;
    if (text) {
        uint8_t *nonce = raw + 1, *body = nonce + NONCE_BYTES;
        size_t text_len = n - SEAL_EXTRA;
        good = gcm(false, key, nonce, body, (int)text_len, text, body + text_len);
        if (good) ms_text_append(out, text, text_len);
        free(text);
    } else {
        good = false;
    }
    free(raw);
    return good;
}
