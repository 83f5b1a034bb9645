// inputs.c - where Q, K, V and dO come from: seeded families, or .npy files.
//
// Randomness without libm, whose log and cos differ in the last bit between C libraries: splitmix64
// for the bits, Marsaglia's polar method for the normal deviates, and a logarithm of our own. What
// is left is + - * / and sqrt, which IEEE 754 rounds the same way everywhere, and the exact frexp
// and ldexp; as long as the compiler fuses no multiply with an add (-ffp-contract=off).
#include "inputs.h"
#include "dtype.h"
#include "npy.h"
#include "refuse.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- random numbers ----------------------------------------------------------------------------

struct random {
    uint64_t state;
    double spare; // the second deviate of a pair
    bool has_spare;
};

// splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
static uint64_t random_bits(struct random *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

// A generator for one tensor: that dO is wanted too does not change Q.
static struct random random_start(uint64_t seed, uint64_t tensor) {
    struct random r = {.state = seed};
    r.state = random_bits(&r) + tensor;
    r.state = random_bits(&r);
    return r;
}

// Uniform in [-1, 1), a multiple of 2^-52.
static double random_uniform(struct random *r) {
    return (double)(random_bits(r) >> 11) * 0x1p-52 - 1;
}

// log x = e log 2 + log m, and log m = 2 (z + z^3/3 + z^5/5 + ...) with z = (m - 1) / (m + 1).
// With m in [1/sqrt 2, sqrt 2] each term is at least 33 times smaller than the one before, and 11
// of them reach double precision.
static double logarithm(double x) {
    int e;
    double m = frexp(x, &e);
    if (m < 0x1.6a09e667f3bcdp-1) m *= 2, e--;
    double z = (m - 1) / (m + 1), square = z * z, sum = 0;
    for (int k = 21; k > 0; k -= 2) sum = sum * square + 1.0 / k;
    return e * 0x1.62e42fefa39efp-1 + 2 * z * sum;
}

// Polar method: a random point of the unit disc is turned into two independent N(0, 1) deviates.
// Marsaglia and Bray, "A convenient method for generating normal variables", 1964.
static double random_normal(struct random *r) {
    if (r->has_spare) {
        r->has_spare = false;
        return r->spare;
    }
    double x, y, s;
    do {
        x = random_uniform(r);
        y = random_uniform(r);
        s = x * x + y * y;
    } while (s >= 1 || s == 0);
    double stretch = sqrt(-2 * logarithm(s) / s);
    r->spare = y * stretch;
    r->has_spare = true;
    return x * stretch;
}

// ---- the families ------------------------------------------------------------------------------

enum tensor { TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_DO };

// What a family's function gets: fill Q and K, and V if it shall not be normal.
struct maker {
    const struct attn_problem *p;
    const char *family;
    uint64_t seed;
    struct inputs *in;
    char *why;
    size_t why_size;
};

static float rounded(const struct maker *m, double x) { return dtype_round(m->p->dtype, (float)x); }

static void fill_normal(const struct maker *m, enum tensor tensor, float *x, uint64_t n,
                        double sigma) {
    struct random r = random_start(m->seed, tensor);
    for (uint64_t i = 0; i < n; i++) x[i] = rounded(m, sigma * random_normal(&r));
}

static void fill_outliers(const struct maker *m, enum tensor tensor, float *x, uint64_t n) {
    struct random r = random_start(m->seed, tensor);
    for (uint64_t i = 0; i < n; i++) {
        double value = random_normal(&r);
        bool outlier = random_uniform(&r) < -1 + 2 * 0.001;
        if (outlier) value += 10 * random_normal(&r);
        x[i] = rounded(m, value);
    }
}

static float *query(const struct maker *m, uint64_t row) { return m->in->Q + row * m->p->head_dim; }
static float *key(const struct maker *m, uint64_t row) { return m->in->K + row * m->p->head_dim; }

static uint64_t key_rows(const struct attn_problem *p) { return attn_kv_elements(p) / p->head_dim; }

// Can the data type hold values of these two sizes, the smaller one as more than 0?
static bool fits(const struct maker *m, double smallest, double largest) {
    if (rounded(m, smallest) > 0 && isfinite(rounded(m, largest))) return true;
    return refuse(m->why, m->why_size,
                  "--data %s: at --scale %g it needs values of %.2g to %.2g, which %s cannot hold; "
                  "give other data, another scale or --dtype fp32",
                  m->family, m->p->scale, smallest, largest, attn_dtype_name(m->p->dtype));
}

// The least power of two that is larger than x > 0: exact in every data type.
static double power_of_two_above(double x) {
    int e;
    frexp(x, &e);
    return ldexp(1, e);
}

static bool make_normal(const struct maker *m) {
    fill_normal(m, TENSOR_Q, m->in->Q, attn_q_elements(m->p), 1);
    fill_normal(m, TENSOR_K, m->in->K, attn_kv_elements(m->p), 1);
    return true;
}

// For q and k of d deviates with standard deviation sigma, q.k has sigma^2 sqrt(d).
static bool make_large(const struct maker *m) {
    const double logit_deviation = 30;
    double sigma = sqrt(logit_deviation / (m->p->scale * sqrt(m->p->head_dim)));
    if (!fits(m, sigma / 64, sigma * 8)) return false; // beyond 8 sigma: one in 10^15
    fill_normal(m, TENSOR_Q, m->in->Q, attn_q_elements(m->p), sigma);
    fill_normal(m, TENSOR_K, m->in->K, attn_kv_elements(m->p), sigma);
    return true;
}

// From -30 to 30, in equal steps. A 16-bit float cannot tell more than a few hundred steps apart,
// so three dimensions carry the level as a sum (each what the ones before rounded away); the others
// are noise, in all at most a quarter step either way: no key ever falls behind an earlier one.
static bool make_rising(const struct maker *m) {
    const double range = 60;
    enum { PARTS = 3 };
    int d = m->p->head_dim, nk = m->p->seqlen_k;
    double scale = m->p->scale, step = range / nk;
    double weight = power_of_two_above(sqrt(range / scale));
    double noise = sqrt(step / 4 / scale / (d - PARTS));
    if (!fits(m, weight, weight) || !fits(m, range / 2 / (scale * weight), weight)) return false;
    struct random r = random_start(m->seed, TENSOR_Q);
    for (uint64_t i = 0; i < attn_rows(m->p); i++) {
        for (int t = 0; t < PARTS; t++) query(m, i)[t] = (float)weight;
        for (int t = PARTS; t < d; t++) query(m, i)[t] = rounded(m, noise * random_uniform(&r));
    }
    r = random_start(m->seed, TENSOR_K);
    for (uint64_t j = 0; j < key_rows(m->p); j++) {
        double level = ((double)(j % nk) - (nk - 1) / 2.0) * step / (scale * weight);
        for (int t = 0; t < PARTS; t++) level -= key(m, j)[t] = rounded(m, level);
        for (int t = PARTS; t < d; t++) key(m, j)[t] = rounded(m, noise * random_uniform(&r));
    }
    return true;
}

static bool make_outliers(const struct maker *m) {
    fill_outliers(m, TENSOR_Q, m->in->Q, attn_q_elements(m->p));
    fill_outliers(m, TENSOR_K, m->in->K, attn_kv_elements(m->p));
    fill_outliers(m, TENSOR_V, m->in->V, attn_kv_elements(m->p));
    return true;
}

// One power of two everywhere in Q and K, so that every logit is the same number between 1 and 4,
// whatever d and scale are. V: integers from -7 to 9 that differ between neighbouring keys.
static bool make_constant(const struct maker *m) {
    int d = m->p->head_dim, nk = m->p->seqlen_k;
    double value = power_of_two_above(sqrt(1 / ((double)m->p->scale * d)));
    if (!fits(m, value, value)) return false;
    for (uint64_t i = 0; i < attn_q_elements(m->p); i++) m->in->Q[i] = (float)value;
    for (uint64_t i = 0; i < attn_kv_elements(m->p); i++) {
        uint64_t t = i % d, j = i / d % nk, head = i / d / nk;
        m->in->K[i] = (float)value;
        m->in->V[i] = (float)((5 * j + 3 * t + 7 * head) % 17) - 7;
    }
    return true;
}

// The number of a key, written in base 16; two dimensions for each digit a:
//     key (2a, -a^2), query w (a', 1):  q.k = w (a'^2 - (a' - a)^2), summed over the digits.
// The wanted key wins by at least the weight w. All these are integers below 256 times a power of
// two, which even bf16 holds. exp(-110) is 0 in fp32, its denormals included.
enum { BASE = 16 };

static void set_key_digits(float *k, int d, int number) {
    for (int t = 0; t < d; t += 2, number /= BASE) {
        int a = number % BASE;
        k[t] = 2 * a;
        k[t + 1] = -a * a;
    }
}

static void set_query_digits(float *q, int d, int number, float weight) {
    for (int t = 0; t < d; t += 2, number /= BASE) {
        q[t] = weight * (number % BASE);
        q[t + 1] = weight;
    }
}

static bool make_one_hot(const struct maker *m) {
    const struct attn_problem *p = m->p;
    double gap = 110, weight = power_of_two_above(gap / p->scale);
    double most = ldexp(1, 2 * p->head_dim); // BASE to the number of digits
    if (p->seqlen_k > most) {
        return refuse(
            m->why, m->why_size,
            "--data one-hot: tells %g keys apart with --head-dim %d, not %d; give fewer keys or "
            "a larger --head-dim",
            most, p->head_dim, p->seqlen_k);
    }
    if (!fits(m, weight, weight * (BASE - 1))) return false;
    for (uint64_t i = 0; i < attn_rows(p); i++) {
        int wanted = one_hot_key(p, (int)(i % p->seqlen_q));
        set_query_digits(query(m, i), p->head_dim, wanted < 0 ? 0 : wanted, (float)weight);
    }
    for (uint64_t j = 0; j < key_rows(p); j++) {
        set_key_digits(key(m, j), p->head_dim, (int)(j % p->seqlen_k));
    }
    return true;
}

// Every fourth query selects the last key it sees, where a mask that is off by one shows; the
// others are spread by a multiplicative hash.
int one_hot_key(const struct attn_problem *p, int i) {
    int visible = attn_visible_keys(p, i);
    if (visible == 0) return -1;
    return i % 4 == 0 ? visible - 1 : (int)((uint64_t)i * 2654435761u % visible);
}

static const struct {
    const char *name;
    bool (*make)(const struct maker *);
} families[DATA_FAMILIES] = {
    [DATA_NORMAL] = {"normal", make_normal},       [DATA_LARGE] = {"large", make_large},
    [DATA_RISING] = {"rising", make_rising},       [DATA_OUTLIERS] = {"outliers", make_outliers},
    [DATA_CONSTANT] = {"constant", make_constant}, [DATA_ONE_HOT] = {"one-hot", make_one_hot},
};

const char *data_family_name(enum data_family family) { return families[family].name; }

bool data_family_parse(const char *name, enum data_family *out) {
    for (int i = 0; i < DATA_FAMILIES; i++) {
        if (strcmp(name, families[i].name)) continue;
        *out = (enum data_family)i;
        return true;
    }
    return false;
}

static bool allocate(const struct attn_problem *p, bool backward, struct inputs *out, char *why,
                     size_t why_size) {
    uint64_t q = attn_q_elements(p) * sizeof(float), kv = attn_kv_elements(p) * sizeof(float);
    *out = (struct inputs){malloc(q), malloc(kv), malloc(kv), backward ? malloc(q) : NULL};
    if (out->Q && out->K && out->V && (out->dO || !backward)) return true;
    inputs_free(out);
    return refuse_memory(
        why, why_size, "no memory for inputs of %.3g GB; make --batch, --heads or --seqlen smaller",
        (double)(q + 2 * kv + backward * q) / 1e9);
}

bool inputs_make(const struct attn_problem *p, enum data_family family, uint64_t seed,
                 bool backward, struct inputs *out, char *why, size_t why_size) {
    if (!allocate(p, backward, out, why, why_size)) return false;
    struct maker m = {p, families[family].name, seed, out, why, why_size};
    fill_normal(&m, TENSOR_V, out->V, attn_kv_elements(p), 1);
    if (backward) fill_normal(&m, TENSOR_DO, out->dO, attn_q_elements(p), 1);
    if (families[family].make(&m)) return true;
    inputs_free(out);
    return false;
}

void inputs_free(struct inputs *in) {
    free(in->Q);
    free(in->K);
    free(in->V);
    free(in->dO);
    *in = (struct inputs){0};
}

// ---- from files --------------------------------------------------------------------------------

enum { DIMS = 4 }; // batch, heads, sequence, head dimension

struct shape {
    uint64_t at[NPY_MAX_DIMS];
    char text[96]; // "[1, 2, 33, 64]", for messages
};

static void print_shape(struct shape *s) {
    snprintf(s->text, sizeof s->text, "[%llu, %llu, %llu, %llu]", (unsigned long long)s->at[0],
             (unsigned long long)s->at[1], (unsigned long long)s->at[2],
             (unsigned long long)s->at[3]);
}

// Prints the shape for later messages. The problem's fields are int, and no side may be empty.
static bool check_sides(const char *path, int dims, struct shape *s, char *why, size_t why_size) {
    if (dims != DIMS) {
        return refuse(why, why_size,
                      "%s: has %d dimensions; save it as [batch, heads, seqlen, head-dim]", path,
                      dims);
    }
    print_shape(s);
    for (int i = 0; i < DIMS; i++) {
        if (s->at[i] >= 1 && s->at[i] <= INT_MAX) continue;
        return refuse(why, why_size, "%s: shape %s has a side out of 1 to %d; save a smaller array",
                      path, s->text, INT_MAX);
    }
    return true;
}

// Narrows the file's doubles to the data type, as fp32.
static bool narrow(const char *path, enum attn_dtype dtype, const struct shape *s,
                   const double *from, float **out, char *why, size_t why_size) {
    uint64_t n = s->at[0] * s->at[1] * s->at[2] * s->at[3];
    float *to = *out = malloc(n * sizeof *to);
    if (!to) return refuse_memory(why, why_size, "%s: no memory for it; use a smaller one", path);
    for (uint64_t i = 0; i < n; i++) {
        to[i] = dtype_round(dtype, (float)from[i]);
        if (isfinite(to[i])) continue;
        return refuse(why, why_size, "%s: element %llu is %g, which is not finite in %s; %s", path,
                      (unsigned long long)i, from[i], attn_dtype_name(dtype),
                      "scale the data or choose another dtype");
    }
    return true;
}

// What *out holds after a failure is for inputs_free.
static bool load_tensor(const char *dir, const char *name, enum attn_dtype dtype,
                        struct shape *shape, float **out, char *why, size_t why_size) {
    char path[4096];
    int dims;
    double *data;
    snprintf(path, sizeof path, "%s/%s.npy", dir, name);
    if (!npy_read(path, &dims, shape->at, &data, why, why_size)) return false;
    bool ok = check_sides(path, dims, shape, why, why_size) &&
              narrow(path, dtype, shape, data, out, why, why_size);
    free(data);
    return ok;
}

static bool same_shape(const char *a_name, const struct shape *a, const char *b_name,
                       const struct shape *b, char *why, size_t why_size) {
    if (!memcmp(a->at, b->at, DIMS * sizeof a->at[0])) return true;
    return refuse(why, why_size, "%s.npy is %s but %s.npy is %s: give both the same shape", a_name,
                  a->text, b_name, b->text);
}

static bool load_all(const char *dir, bool backward, struct attn_problem *p, struct inputs *out,
                     char *why, size_t why_size) {
    struct shape q = {0}, k = {0}, v = {0}, dO = {0};
    if (!load_tensor(dir, "Q", p->dtype, &q, &out->Q, why, why_size) ||
        !load_tensor(dir, "K", p->dtype, &k, &out->K, why, why_size) ||
        !load_tensor(dir, "V", p->dtype, &v, &out->V, why, why_size) ||
        !same_shape("K", &k, "V", &v, why, why_size)) {
        return false;
    }
    if (q.at[0] != k.at[0] || q.at[3] != k.at[3]) {
        return refuse(why, why_size, "Q.npy is %s but K.npy is %s: give both the same %s", q.text,
                      k.text,
                      q.at[0] != k.at[0] ? "batch (first side)" : "head dimension (last side)");
    }
    if (backward && (!load_tensor(dir, "dO", p->dtype, &dO, &out->dO, why, why_size) ||
                     !same_shape("Q", &q, "dO", &dO, why, why_size))) {
        return false;
    }
    p->batch = (int)q.at[0], p->heads = (int)q.at[1], p->kv_heads = (int)k.at[1];
    p->seqlen_q = (int)q.at[2], p->seqlen_k = (int)k.at[2], p->head_dim = (int)q.at[3];
    return true;
}

bool inputs_load(const char *dir, bool backward, struct attn_problem *p, struct inputs *out,
                 char *why, size_t why_size) {
    *out = (struct inputs){0};
    if (load_all(dir, backward, p, out, why, why_size)) return true;
    inputs_free(out);
    return false;
}
