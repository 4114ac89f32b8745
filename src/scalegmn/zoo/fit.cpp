// Fits INRs to images by Adam: the whole optimisation of one network runs here, tile by tile of pixels.
//
// Everything that belongs to a pixel is a row, one number per neuron, so that all products and sums run along whole
// vectors. Layers are padded with zero neurons to whole vectors: their weights get no gradient and stay zero.
// A tile of rows and the weights stay in the first level cache from the first layer to the gradient.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using Index = std::int64_t;

// Rows of a tile, and neurons to which layers are padded.
constexpr Index TILE = 56, PAD = 8;
// Rows of a block of a product, the other side being two vectors: eight accumulators keep both multipliers busy.
constexpr Index ROWS = 4;

inline Index padded(Index n, Index to) { return (n + to - 1) / to * to; }

template <typename F>
struct Vector {
    static constexpr Index size = 32 / sizeof(F);
    typedef F type __attribute__((vector_size(32), aligned(sizeof(F)), may_alias));
};

// -- activations: value and slope from z, which lies in the place of the slope -----------------------------------

inline void sine(double z, double &value, double &slope) {
    value = std::sin(z);
    slope = std::cos(z);
}

// With r = z - n pi in [-pi/2, pi/2] both are (-1)^n times a polynomial, good to 1e-7 for |z| < 1e5. Plain arithmetic
// on numbers and bits, so compilers vectorise it.
inline void sine(float z, float &value, float &slope) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: the sum's last bits are n
    const float shifted = z * 0.318309886f + magic;
    const float n = shifted - magic;
    float r = z - n * 3.140625f;
    r = r - n * 9.67502593994140625e-4f;
    r = r - n * 1.509957990978376432e-7f;
    const float s = r * r;
    float p = 2.5997517916e-6f;
    p = p * s - 1.9806478960e-4f;
    p = p * s + 8.3330154176e-3f;
    p = p * s - 1.6666657021e-1f;
    p = p * s * r + r;
    float q = -2.6074220199e-7f;
    q = q * s + 2.4761730007e-5f;
    q = q * s - 1.3888400628e-3f;
    q = q * s + 4.1666640522e-2f;
    q = q * s - 4.9999999545e-1f;
    q = q * s + 1.0f;
    std::uint32_t odd, a, b;
    std::memcpy(&odd, &shifted, sizeof odd);
    std::memcpy(&a, &p, sizeof a);
    std::memcpy(&b, &q, sizeof b);
    odd <<= 31;
    a ^= odd;
    b ^= odd;
    std::memcpy(&value, &a, sizeof value);
    std::memcpy(&slope, &b, sizeof slope);
}

inline double tangent(double z) { return std::tanh(z); }

// (1 - e) / (1 + e) with e = exp(-2 |z|) = 2^n times a polynomial.
inline float tangent(float z) {
    const float x = std::max(-2.0f * std::fabs(z), -80.0f);
    const float magic = 12582912.0f;
    const float n = (x * 1.44269504f + magic) - magic;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r;
    const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    const float below = p * scale + (scale - 1.0f);  // e - 1
    return std::copysign(-below / (2.0f + below), z);
}

enum Activation : int { SINE, RELU, TANH };

template <typename F>
void activate(int kind, Index count, F *value, F *slope) {
    if (kind == SINE) {
#pragma omp simd
        for (Index i = 0; i < count; ++i) sine(slope[i], value[i], slope[i]);
    } else if (kind == RELU) {
#pragma omp simd
        for (Index i = 0; i < count; ++i) {
            value[i] = std::max(slope[i], F(0));
            slope[i] = slope[i] > 0 ? F(1) : F(0);
        }
    } else {
#pragma omp simd
        for (Index i = 0; i < count; ++i) {
            value[i] = tangent(slope[i]);
            slope[i] = 1 - value[i] * value[i];
        }
    }
}

// -- products --------------------------------------------------------------------------------------------------------

enum class Into { biased, times, plus };

// A matrix whose entry (r, k) is at r * row + k * step.
template <typename F>
struct Left {
    const F *data;
    Index row, step;
};

// C = A B + bias, C *= A B or C += A B for a block of ROWS rows and `wide` vectors.
template <Into into, int wide, typename F>
inline void block(Left<F> a, const F *b, Index ldb, Index depth, const F *bias, F *c, Index ldc) {
    using V = typename Vector<F>::type;
    constexpr Index size = Vector<F>::size;
    V sum[ROWS][wide];
    for (Index r = 0; r < ROWS; ++r)
        for (int j = 0; j < wide; ++j)
            sum[r][j] = into == Into::biased ? *reinterpret_cast<const V *>(bias + j * size) : V{};
    for (Index k = 0; k < depth; ++k) {
        const V *right = reinterpret_cast<const V *>(b + k * ldb);
        for (Index r = 0; r < ROWS; ++r)
            for (int j = 0; j < wide; ++j) sum[r][j] += a.data[r * a.row + k * a.step] * right[j];
    }
    for (Index r = 0; r < ROWS; ++r)
        for (int j = 0; j < wide; ++j) {
            V &out = reinterpret_cast<V *>(c + r * ldc)[j];
            out = into == Into::biased ? sum[r][j] : into == Into::times ? out * sum[r][j] : out + sum[r][j];
        }
}

// The same for any number of rows and columns that are padded; b and c have `columns` columns.
template <Into into, typename F>
void product(Left<F> a, const F *b, Index rows, Index depth, Index columns, const F *bias, F *c) {
    constexpr Index size = Vector<F>::size;
    Index j = 0;
    for (; j + 2 * size <= columns; j += 2 * size)
        for (Index r = 0; r < rows; r += ROWS)
            block<into, 2>({a.data + r * a.row, a.row, a.step}, b + j, columns, depth, bias + j, c + r * columns + j, columns);
    for (; j < columns; j += size)
        for (Index r = 0; r < rows; r += ROWS)
            block<into, 1>({a.data + r * a.row, a.row, a.step}, b + j, columns, depth, bias + j, c + r * columns + j, columns);
}

// -- one network -----------------------------------------------------------------------------------------------------

struct Shape {
    const Index *sizes;  // 2, hidden layers, channels
    Index layers;        // connections, the last one linear
    int activation;
    double w0;
};

// Every pixel lies at (x[column[p]], y[row[p]]); a grid has few different x and y.
template <typename F>
struct Points {
    Index count, columns, rows;
    const F *x, *y;
    const std::int32_t *column, *row;
};

struct Schedule {
    Index steps, look;         // look at the PSNR every so many steps; 0 for never
    double lr, beta1, beta2, epsilon;
    double psnr, span;         // target in dB; largest difference of two colours
};

struct Layer {
    Index in, out, wide_in, wide;  // true and padded sizes; the two coordinates are not padded
    Index weight, bias;            // places in the padded parameters; the first weight is (in, out), others (out, in)
};

template <typename F>
class Network {
  public:
    Network(const Shape &shape, const Points<F> &points) : kind(shape.activation), w0(shape.w0), points(points) {
        Index place = 0, widest = 0;
        for (Index l = 0; l < shape.layers; ++l) {
            Layer y{shape.sizes[l], shape.sizes[l + 1], l ? padded(shape.sizes[l], PAD) : 2, padded(shape.sizes[l + 1], PAD), 0, 0};
            y.weight = place;
            y.bias = place + y.wide * y.wide_in;
            place = y.bias + y.wide;
            widest = std::max(widest, y.wide);
            layers.push_back(y);
        }
        channels = layers.back().out;
        for (auto *v : {&theta, &gradient, &first, &second, &scaled, &transposed}) v->assign(place, F(0));
        for (auto *v : {&value_x, &slope_x}) v->resize(points.columns * layers[0].wide);
        for (auto *v : {&value_y, &slope_y}) v->resize(points.rows * layers[0].wide);
        for (std::size_t l = 0; l + 1 < layers.size(); ++l) {
            values.emplace_back(TILE * layers[l].wide);
            slopes.emplace_back(TILE * layers[l].wide);
        }
        error.resize(TILE * channels);
        zeros.assign(widest, F(0));
    }

    void begin(const F *row) {
        copy([&](F &mine, Index i) { mine = row[i]; }, theta);
        std::fill(first.begin(), first.end(), F(0));
        std::fill(second.begin(), second.end(), F(0));
    }

    void read(F *row) { copy([&](F &mine, Index i) { row[i] = mine; }, theta); }
    void read_gradient(F *row) { copy([&](F &mine, Index i) { row[i] = mine; }, gradient); }

    // The mean squared error, and its gradient with respect to the parameters.
    double pass(const F *target) {
        prepare();
        double total = 0;
        for (Index start = 0; start < points.count; start += TILE) {
            const Index count = std::min(TILE, points.count - start), rows = padded(count, ROWS);
            forward(start, count, rows);
            total += compare(target + start * channels, count, rows);
            backward(start, count, rows);
        }
        for (std::size_t l = 0; l + 1 < layers.size(); ++l) {
            const Layer &y = layers[l];
            for (Index i = y.weight; i < y.bias + y.wide; ++i) gradient[i] *= w0;
        }
        return total / (points.count * channels);
    }

    void adam(Index step, const Schedule &s) {
        const F root = std::sqrt(1 - std::pow(s.beta2, step)), a = 1 - s.beta1, b = s.beta2, c = 1 - s.beta2;
        const F rate = s.lr * root / (1 - std::pow(s.beta1, step)), epsilon = s.epsilon * root;
        F *t = theta.data(), *m = first.data(), *v = second.data();
        const F *g = gradient.data();
        const Index count = theta.size();
#pragma omp simd
        for (Index i = 0; i < count; ++i) {
            m[i] += a * (g[i] - m[i]);
            v[i] = b * v[i] + c * g[i] * g[i];
            t[i] -= rate * m[i] / (std::sqrt(v[i]) + epsilon);
        }
    }

  private:
    int kind;
    F w0;
    Points<F> points;
    Index channels;
    std::vector<Layer> layers;
    std::vector<F> theta, gradient, first, second;  // padded parameters and Adam's moments
    std::vector<F> scaled, transposed;              // w0 W and its transpose in the places of W, w0 b in that of b
    std::vector<F> value_x, slope_x, value_y, slope_y;  // of the first layer along both axes
    std::vector<std::vector<F>> values, slopes;         // of a tile, per hidden layer; slopes become deltas
    std::vector<F> error, zeros;

    // Visit the parameters in the order W1, b1, W2, b2, ..., weights (out, in) row by row.
    template <typename Visit>
    void copy(Visit visit, std::vector<F> &mine) {
        Index i = 0;
        for (std::size_t l = 0; l < layers.size(); ++l) {
            const Layer &y = layers[l];
            for (Index o = 0; o < y.out; ++o)
                for (Index k = 0; k < y.in; ++k) visit(mine[y.weight + (l ? o * y.wide_in + k : k * y.wide + o)], i++);
            for (Index o = 0; o < y.out; ++o) visit(mine[y.bias + o], i++);
        }
    }

    // Clear the gradient, scale and transpose the weights, and evaluate the first layer along the two axes.
    void prepare() {
        std::fill(gradient.begin(), gradient.end(), F(0));
        for (std::size_t l = 0; l + 1 < layers.size(); ++l) {
            const Layer &y = layers[l];
            for (Index i = y.weight; i < y.bias + y.wide; ++i) scaled[i] = w0 * theta[i];
            if (l == 0) continue;
            for (Index k = 0; k < y.wide_in; ++k)
                for (Index o = 0; o < y.wide; ++o)
                    transposed[y.weight + k * y.wide + o] = scaled[y.weight + o * y.wide_in + k];
        }
        const Index wide = layers[0].wide;
        const F *w = scaled.data();
        axis(points.x, points.columns, w, w + 2 * wide, value_x.data(), slope_x.data());
        axis(points.y, points.rows, w + wide, zeros.data(), value_y.data(), slope_y.data());
    }

    // z = w x + bias; for a sine layer its sine and cosine.
    void axis(const F *x, Index count, const F *w, const F *bias, F *value, F *slope) {
        const Index wide = layers[0].wide;
        for (Index p = 0; p < count; ++p)
#pragma omp simd
            for (Index i = 0; i < wide; ++i) slope[p * wide + i] = w[i] * x[p] + bias[i];
        if (kind == SINE) activate(kind, count * wide, value, slope);
    }

    void forward(Index start, Index count, Index rows) {
        const Index wide = layers[0].wide;
        F *value = values[0].data(), *slope = slopes[0].data();
        for (Index p = 0; p < rows; ++p) {
            const Index at = start + std::min(p, count - 1), i = points.column[at] * wide, j = points.row[at] * wide;
            first_layer(&value_x[i], &slope_x[i], &value_y[j], &slope_y[j], value + p * wide, slope + p * wide);
        }
        if (kind != SINE) activate(kind, rows * wide, value, slope);
        for (std::size_t l = 1; l + 1 < layers.size(); ++l) {
            const Layer &y = layers[l];
            const Left<F> below{values[l - 1].data(), y.wide_in, 1};
            product<Into::biased>(below, &transposed[y.weight], rows, y.wide_in, y.wide, &scaled[y.bias], slopes[l].data());
            activate(kind, rows * y.wide, values[l].data(), slopes[l].data());
        }
    }

    // sin(a + b) = sin a cos b + cos a sin b, and its slope; for the others the sum itself.
    inline void first_layer(const F *va, const F *sa, const F *vb, const F *sb, F *value, F *slope) {
        const Index wide = layers[0].wide;
        if (kind == SINE) {
#pragma omp simd
            for (Index i = 0; i < wide; ++i) {
                value[i] = va[i] * sb[i] + sa[i] * vb[i];
                slope[i] = sa[i] * sb[i] - va[i] * vb[i];
            }
        } else {
#pragma omp simd
            for (Index i = 0; i < wide; ++i) slope[i] = sa[i] + sb[i];
        }
    }

    // The output layer; leaves the derivative by the output in `error`, zero in rows beyond the image.
    double compare(const F *target, Index count, Index rows) {
        const Layer &y = layers.back();
        const F scale = F(2) / (points.count * channels);
        double total = 0;
        for (Index p = 0; p < rows; ++p)
            for (Index c = 0; c < channels; ++c) {
                const F *w = &theta[y.weight + c * y.wide_in], *a = &values.back()[p * y.wide_in];
                F sum = 0;
#pragma omp simd reduction(+ : sum)
                for (Index i = 0; i < y.wide_in; ++i) sum += w[i] * a[i];
                const F e = p < count ? sum + theta[y.bias + c] - target[p * channels + c] : F(0);
                total += static_cast<double>(e) * e;
                error[p * channels + c] = scale * e;
            }
        return total;
    }

    void backward(Index start, Index count, Index rows) {
        output_gradient(rows);
        for (std::size_t l = layers.size() - 2; l > 0; --l) {
            const Layer &y = layers[l];
            const F *delta = slopes[l].data();
            product<Into::plus>({delta, 1, y.wide}, values[l - 1].data(), y.wide, rows, y.wide_in, zeros.data(), &gradient[y.weight]);
            F *bias = &gradient[y.bias];
            for (Index p = 0; p < rows; ++p)
#pragma omp simd
                for (Index i = 0; i < y.wide; ++i) bias[i] += delta[p * y.wide + i];
            product<Into::times>({delta, y.wide, 1}, &scaled[y.weight], rows, y.wide, y.wide_in, zeros.data(), slopes[l - 1].data());
        }
        input_gradient(start, count);
    }

    void output_gradient(Index rows) {
        const Layer &y = layers.back();
        F *delta = slopes.back().data();
        for (Index p = 0; p < rows; ++p) {
            const F *a = &values.back()[p * y.wide_in];
            F *d = delta + p * y.wide_in;
            for (Index i = 0; i < y.wide_in; i += PAD) {
                F up[PAD] = {};
                for (Index c = 0; c < channels; ++c) {
                    const F e = error[p * channels + c];
                    const F *w = &theta[y.weight + c * y.wide_in + i];
                    F *g = &gradient[y.weight + c * y.wide_in + i];
#pragma omp simd
                    for (Index j = 0; j < PAD; ++j) {
                        up[j] += e * w[j];
                        g[j] += e * a[i + j];
                    }
                }
#pragma omp simd
                for (Index j = 0; j < PAD; ++j) d[i + j] *= up[j];
            }
            for (Index c = 0; c < channels; ++c) gradient[y.bias + c] += error[p * channels + c];
        }
    }

    void input_gradient(Index start, Index count) {
        const Index wide = layers[0].wide;
        F *g = gradient.data();
        for (Index p = 0; p < count; ++p) {
            const F x = points.x[points.column[start + p]], y = points.y[points.row[start + p]];
            const F *delta = &slopes[0][p * wide];
#pragma omp simd
            for (Index i = 0; i < wide; ++i) {
                g[i] += x * delta[i];
                g[wide + i] += y * delta[i];
                g[2 * wide + i] += delta[i];
            }
        }
    }
};

template <typename F>
void fit(const Shape &shape, const Points<F> &points, const Schedule &s, Index count, const F *targets, F *parameters,
         F *psnr, Index *steps) {
    Network<F> network(shape, points);
    const Index pixels = points.count * shape.sizes[shape.layers];
    Index size = 0;
    for (Index l = 0; l < shape.layers; ++l) size += (shape.sizes[l] + 1) * shape.sizes[l + 1];
    for (Index b = 0; b < count; ++b) {
        network.begin(parameters + b * size);
        for (Index step = 0;; ++step) {
            const double error = network.pass(targets + b * pixels);
            const bool look = s.look && step % s.look == 0;
            psnr[b] = static_cast<F>(-10 * std::log10(error / (s.span * s.span)));
            steps[b] = step;
            if (step == s.steps || (look && psnr[b] >= static_cast<F>(s.psnr))) break;
            network.adam(step + 1, s);
        }
        network.read(parameters + b * size);
    }
}

template <typename F>
void gradient(const Shape &shape, const Points<F> &points, const F *target, const F *parameters, F *out, double *error) {
    Network<F> network(shape, points);
    network.begin(parameters);
    *error = network.pass(target);
    network.read_gradient(out);
}

}  // namespace

#define EXPORT(F)                                                                                                     \
    extern "C" void fit_##F(const Shape *shape, const Points<F> *points, const Schedule *schedule, Index count,       \
                            const F *targets, F *parameters, F *psnr, Index *steps) {                                 \
        fit<F>(*shape, *points, *schedule, count, targets, parameters, psnr, steps);                                  \
    }                                                                                                                 \
    extern "C" void gradient_##F(const Shape *shape, const Points<F> *points, const F *target, const F *parameters,   \
                                 F *out, double *error) {                                                             \
        gradient<F>(*shape, *points, target, parameters, out, error);                                                 \
    }

EXPORT(float)
EXPORT(double)
