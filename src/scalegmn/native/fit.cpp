// Fits INRs to images by Adam: the whole optimisation of one network runs here, tile by tile of pixels.
//
// Everything that belongs to a pixel is a row, one number per neuron, so that all products and sums run along whole
// vectors. Layers are padded with zero neurons to whole vectors: their weights get no gradient and stay zero.
// A tile of rows and the weights stay in the first level cache from the first layer to the gradient.

#include "vectors.h"

namespace {

// Pixels of a tile, and neurons to which hidden layers are padded.
constexpr Index TILE = 66, PAD = 8;

inline Index padded(Index n) { return (n + PAD - 1) / PAD * PAD; }

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
    Index steps, look;  // look at the PSNR every so many steps; 0 for never
    double lr, beta1, beta2, epsilon;
    double psnr, span;  // target in dB; largest difference of two colours
};

struct Layer {
    Index in, out, wide_in, wide;  // true and padded sizes; coordinates and colours are not padded
    Index weight, bias;            // places in the padded parameters; the first weight is (in, out), others (out, in)
};

template <typename F>
class Network {
  public:
    Network(const Shape &shape, const Points<F> &points)
        : kind(shape.activation), w0(shape.w0), channels(shape.sizes[shape.layers]), points(points) {
        Index place = 0;
        for (Index l = 0; l < shape.layers; ++l) {
            const Index in = shape.sizes[l], out = shape.sizes[l + 1];
            const Index wide_in = l ? padded(in) : 2, wide = l + 1 < shape.layers ? padded(out) : out;
            layers.push_back({in, out, wide_in, wide, place, place + wide * wide_in});
            place = padded(layers[l].bias + wide);
        }
        for (auto *v : {&theta, &gradient, &first, &second, &scaled, &transposed}) v->assign(place, F(0));
        for (auto *v : {&value_x, &slope_x}) v->resize(points.columns * layers[0].wide);
        for (auto *v : {&value_y, &slope_y}) v->resize(points.rows * layers[0].wide);
        for (Index l = 0; l + 1 < shape.layers; ++l) {
            values.emplace_back(TILE * layers[l].wide);
            slopes.emplace_back(TILE * layers[l].wide);
        }
        zeros.assign(layers[0].wide, F(0));
        error.resize(TILE * channels);
        for (Index p = 0; p < points.count; ++p)
            inputs.insert(inputs.end(), {points.x[points.column[p]], points.y[points.row[p]], F(1)});
    }

    void begin(const F *row) {
        copy(theta, [&](F &mine, Index i) { mine = row[i]; });
        std::fill(first.begin(), first.end(), F(0));
        std::fill(second.begin(), second.end(), F(0));
    }

    void read(F *row) {
        copy(theta, [&](F &mine, Index i) { row[i] = mine; });
    }

    void read_gradient(F *row) {
        copy(gradient, [&](F &mine, Index i) { row[i] = mine; });
    }

    // The mean squared error, and its gradient with respect to the parameters if wanted.
    double pass(const F *target, bool wanted = true) {
        prepare();
        double total = 0;
        for (Index start = 0; start < points.count; start += TILE) {
            const Index count = std::min(TILE, points.count - start);
            forward(start, count);
            total += with_width(layers.back().wide_in, [&](auto wide) {
                return compare(target + start * channels, count, wide);
            });
            if (wanted) backward(start, count);
        }
        for (Index i = 0; i < layers.back().weight; ++i) gradient[i] *= w0;
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
    Index channels;
    Points<F> points;
    std::vector<Layer> layers;
    Array<F> theta, gradient, first, second;      // padded parameters and Adam's moments
    Array<F> scaled, transposed;                  // w0 W and w0 b in the places of W and b; w0 W transposed
    Array<F> value_x, slope_x, value_y, slope_y;  // of the first layer along both axes
    std::vector<Array<F>> values, slopes;         // of a tile, per hidden layer; slopes become deltas
    Array<F> inputs, error, zeros;                // inputs: x, y, 1 of every pixel

    // Visit the parameters in the order W1, b1, W2, b2, ..., weights (out, in) row by row.
    template <typename Visit>
    void copy(Array<F> &mine, Visit visit) {
        Index i = 0;
        for (const Layer &y : layers) {
            const Index down = &y == &layers[0] ? 1 : y.wide_in, right = &y == &layers[0] ? y.wide : 1;
            for (Index o = 0; o < y.out; ++o)
                for (Index k = 0; k < y.in; ++k) visit(mine[y.weight + o * down + k * right], i++);
            for (Index o = 0; o < y.out; ++o) visit(mine[y.bias + o], i++);
        }
    }

    // Clear the gradient, scale and transpose the weights, and evaluate the first layer along the two axes.
    void prepare() {
        std::fill(gradient.begin(), gradient.end(), F(0));
        for (Index i = 0; i < layers.back().weight; ++i) scaled[i] = w0 * theta[i];
        for (std::size_t l = 1; l + 1 < layers.size(); ++l) {
            const Layer &y = layers[l];
            F *to = &transposed[y.weight];
            const F *from = &scaled[y.weight];
            for (Index k = 0; k < y.wide_in; ++k)
                for (Index o = 0; o < y.wide; ++o) to[k * y.wide + o] = from[o * y.wide_in + k];
        }
        const F *w = &scaled[0];
        axis(points.x, points.columns, w, &scaled[layers[0].bias], value_x.data(), slope_x.data());
        axis(points.y, points.rows, w + layers[0].wide, zeros.data(), value_y.data(), slope_y.data());
    }

    // z = w x + bias; for a sine layer its sine and cosine.
    void axis(const F *x, Index count, const F *w, const F *bias, F *value, F *slope) {
        const Index wide = layers[0].wide;
        for (Index p = 0; p < count; ++p)
#pragma omp simd
            for (Index i = 0; i < wide; ++i) slope[p * wide + i] = w[i] * x[p] + bias[i];
        if (kind == SINE) activate(kind, count * wide, value, slope);
    }

    void forward(Index start, Index count) {
        with_width(layers[0].wide, [&](auto wide) { first_layer(start, count, wide); });
        if (kind != SINE) activate(kind, count * layers[0].wide, values[0].data(), slopes[0].data());
        for (std::size_t l = 1; l + 1 < layers.size(); ++l) {
            const Layer &y = layers[l];
            const Left<F> below{values[l - 1].data(), y.wide_in, 1};
            F *z = slopes[l].data();
            product<Into::biased>(below, &transposed[y.weight], count, y.wide_in, y.wide, &scaled[y.bias], z);
            activate(kind, count * y.wide, values[l].data(), z);
        }
    }

    // sin(a + b) = sin a cos b + cos a sin b and its slope; for other activations a + b.
    template <typename Width>
    void first_layer(Index start, Index count, Width wide) {
        using V = typename Vector<F>::type;
        constexpr Index size = Vector<F>::size;
        const V *sin_x = vectors(value_x), *sin_y = vectors(value_y);
        const V *cos_x = vectors(slope_x), *cos_y = vectors(slope_y);
        V *value = vectors(values[0]), *slope = vectors(slopes[0]);
        const bool sine = kind == SINE;
        for (Index p = start; p < start + count; ++p) {
            const Index a = points.column[p] * wide / size, b = points.row[p] * wide / size;
            for (Index i = 0; i < wide / size; ++i, ++value, ++slope) {
                const V sa = sin_x[a + i], ca = cos_x[a + i], sb = sin_y[b + i], cb = cos_y[b + i];
                if (sine) *value = sa * cb + ca * sb;
                *slope = sine ? ca * cb - sa * sb : ca + cb;
            }
        }
    }

    // The output layer: the sum of squared errors, and the derivative by each output in `error`.
    template <typename Width>
    double compare(const F *target, Index count, Width wide) {
        const Layer &y = layers.back();
        const F scale = F(2) / (points.count * channels);
        double total = 0;
        for (Index c = 0; c < channels; ++c) {
            const F *w = &theta[y.weight + c * wide], bias = theta[y.bias + c], *below = values.back().data();
            F sum = 0;
            for (Index p = 0; p < count; ++p) {
                const F e = dot(w, below + p * wide, wide) + bias - target[p * channels + c];
                total += static_cast<double>(e) * e;
                sum += e;
                error[p * channels + c] = scale * e;
            }
            gradient[y.bias + c] += scale * sum;
        }
        return total;
    }

    void backward(Index start, Index count) {
        const F *none = nullptr;
        for (std::size_t l = layers.size() - 1; l > 0; --l) {
            const Layer &y = layers[l];
            const bool last = l + 1 == layers.size();
            const F *delta = last ? error.data() : slopes[l].data(), *below = values[l - 1].data();
            const F *weight = last ? &theta[y.weight] : &scaled[y.weight];
            product<Into::plus>({delta, 1, y.wide}, below, y.wide, count, y.wide_in, none, &gradient[y.weight]);
            if (!last) add_rows(delta, count, y.wide, &gradient[y.bias]);
            product<Into::times>({delta, y.wide, 1}, weight, count, y.wide, y.wide_in, none, slopes[l - 1].data());
        }
        // W and b of the first layer lie together: a matrix with three rows.
        product<Into::plus>({&inputs[3 * start], 1, 3}, slopes[0].data(), 3, count, layers[0].wide, none, &gradient[0]);
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
            const double error = network.pass(targets + b * pixels, step < s.steps);
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
void gradient(const Shape &shape, const Points<F> &points, const F *target, const F *parameters, F *out,
              double *error) {
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
