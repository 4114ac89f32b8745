// Fits INRs to images by Adam: the whole optimisation of one network runs here, tile by tile of pixels.
//
// Everything that belongs to a pixel is a row, one number per neuron, so that all products and sums run along whole
// vectors. Layers are padded with zero neurons to whole vectors: their weights get no gradient and stay zero.
// A tile of rows and the weights stay in the first level cache from the first layer to the gradient.

#include "products.h"

namespace {

// Pixels of a tile, and neurons to which hidden layers are padded.
constexpr Index TILE = 66, PAD = BYTES / 4;

inline Index padded(Index n) { return (n + PAD - 1) / PAD * PAD; }

// Networks of one shape on one set of points. Every pixel lies at (x[column[p]], y[row[p]]); a grid has few different x
// and y.
template <typename F>
struct Problem {
    Span<const Index> sizes;  // 2, hidden layers, channels; the last layer is linear
    int activation;
    double w0;
    Span<const F> x, y;
    Span<const std::int32_t> column, row;

    Index layers() const { return sizes.count - 1; }
    Index channels() const { return sizes.data[layers()]; }
    Index pixels() const { return column.count; }

    Index parameters() const {
        Index total = 0;
        for (Index l = 0; l < layers(); ++l) total += (sizes.data[l] + 1) * sizes.data[l + 1];
        return total;
    }
};

struct Schedule {
    Index steps, look;  // look at the PSNR every so many steps; 0 for never
    double lr, beta1, beta2, epsilon;
    double psnr, span;  // target in dB; largest difference of two colours
};

template <typename F>
void check(const Problem<F> &p) {
    expect(3 <= p.sizes.count && p.sizes.count <= 64 && p.sizes.data && p.sizes.data[0] == 2,
           "sizes must be 2, hidden layers and channels");
    p.sizes.expect_within(1, 1 << 16, "sizes must be 1 to 65536");
    expect(SINE <= p.activation && p.activation <= TANH, "activation must be 0, 1 or 2");
    expect(0 < p.pixels() && p.pixels() < Index(1) << 31, "there must be pixels");
    p.x.expect_count(p.x.count, "x does not begin at a number");
    p.y.expect_count(p.y.count, "y does not begin at a number");
    p.column.expect_count(p.pixels(), "column does not begin at a number");
    p.row.expect_count(p.pixels(), "every pixel needs a row");
    p.column.expect_within(0, p.x.count - 1, "a column is none of x");
    p.row.expect_within(0, p.y.count - 1, "a row is none of y");
}

struct Layer {
    Index in, out, wide_in, wide;  // true and padded sizes; coordinates and colours are not padded
    Index weight, bias;            // places in the padded parameters; the first weight is (in, out), others (out, in)
};

template <typename F>
class Network {
  public:
    explicit Network(const Problem<F> &problem)
        : kind(problem.activation), w0(problem.w0), channels(problem.channels()), problem(problem) {
        Index place = 0;
        for (Index l = 0; l < problem.layers(); ++l) {
            const Index in = problem.sizes.data[l], out = problem.sizes.data[l + 1];
            const Index wide_in = l ? padded(in) : 2, wide = l + 1 < problem.layers() ? padded(out) : out;
            layers.push_back({in, out, wide_in, wide, place, place + wide * wide_in});
            place = padded(layers[l].bias + wide);
        }
        for (auto *v : {&theta, &gradient, &first, &second, &scaled, &transposed}) v->assign(place, F(0));
        for (auto *v : {&value_x, &slope_x}) v->assign(problem.x.count * layers[0].wide, F(0));
        for (auto *v : {&value_y, &slope_y}) v->assign(problem.y.count * layers[0].wide, F(0));
        for (Index l = 0; l + 1 < problem.layers(); ++l) {
            values.emplace_back(TILE * layers[l].wide, F(0));
            slopes.emplace_back(TILE * layers[l].wide, F(0));
        }
        zeros.assign(layers[0].wide, F(0));
        error.assign(TILE * channels, F(0));
        outputs.assign(TILE, F(0));
        for (Index p = 0; p < problem.pixels(); ++p)
            inputs.insert(inputs.end(), {problem.x.data[problem.column.data[p]], problem.y.data[problem.row.data[p]], F(1)});
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
        for (Index start = 0; start < problem.pixels(); start += TILE) {
            const Index count = std::min(TILE, problem.pixels() - start);
            forward(start, count);
            total += with_width(layers.back().wide_in, [&](auto wide) {
                // Of the widths that are padded to 32, those of published collections do not round.
                const bool rounded = !std::is_same_v<decltype(wide), Constant<32>> || layers.back().in <= 24;
                return rounded ? compare<true>(target + start * channels, count, wide)
                               : compare<false>(target + start * channels, count, wide);
            });
            if (wanted) backward(start, count);
        }
        for (Index i = 0; i < layers.back().weight; ++i) gradient[i] *= w0;
        return total / (problem.pixels() * channels);
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
    const Problem<F> &problem;
    std::vector<Layer> layers;
    Array<F> theta, gradient, first, second;      // padded parameters and Adam's moments
    Array<F> scaled, transposed;                  // w0 W and w0 b in the places of W and b; w0 W transposed
    Array<F> value_x, slope_x, value_y, slope_y;  // of the first layer along both axes
    std::vector<Array<F>> values, slopes;         // of a tile, per hidden layer; slopes become deltas
    Array<F> inputs, outputs, error, zeros;       // inputs: x, y, 1 of every pixel; outputs: one channel of a tile

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
        axis(problem.x, w, &scaled[layers[0].bias], value_x.data(), slope_x.data());
        axis(problem.y, w + layers[0].wide, zeros.data(), value_y.data(), slope_y.data());
    }

    // z = w x + bias; for a sine layer its sine and cosine.
    void axis(Span<const F> x, const F *w, const F *bias, F *value, F *slope) {
        const Index wide = layers[0].wide;
        for (Index p = 0; p < x.count; ++p)
#pragma omp simd
            for (Index i = 0; i < wide; ++i) slope[p * wide + i] = w[i] * x.data[p] + bias[i];
        if (kind == SINE) activate(kind, x.count * wide, value, slope);
    }

    void forward(Index start, Index count) {
        with_width(layers[0].wide, [&](auto wide) { first_layer(start, count, wide); });
        if (kind != SINE) activate(kind, count * layers[0].wide, values[0].data(), slopes[0].data());
        for (std::size_t l = 1; l + 1 < layers.size(); ++l) {
            const Layer &y = layers[l];
            const F *below = values[l - 1].data(), *weight = &transposed[y.weight], *bias = &scaled[y.bias];
            F *z = slopes[l].data();
            with_width(y.wide, [&](auto wide) {
                product<Into::biased>(count, wide, y.wide_in, below, y.wide_in, 1, rows_of(weight, wide), z, wide, bias);
            });
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
            const Index a = problem.column.data[p] * wide / size, b = problem.row.data[p] * wide / size;
            for (Index i = 0; i < wide / size; ++i, ++value, ++slope) {
                const V sa = sin_x[a + i], ca = cos_x[a + i], sb = sin_y[b + i], cb = cos_y[b + i];
                if (sine) *value = sa * cb + ca * sb;
                *slope = sine ? ca * cb - sa * sb : ca + cb;
            }
        }
    }

    // The output layer: the sum of squared errors, and the derivative by each output in `error`.
    template <bool rounded, typename Width>
    double compare(const F *target, Index count, Width wide) {
        const Layer &y = layers.back();
        const F scale = F(2) / (problem.pixels() * channels);
        double total = 0;
        for (Index c = 0; c < channels; ++c) {
            const F *w = &theta[y.weight + c * wide], bias = theta[y.bias + c], *below = values.back().data();
            dots<rounded>(w, below, count, wide, outputs.data());
            F sum = 0;
            for (Index p = 0; p < count; ++p) {
                const F e = outputs[p] + bias - target[p * channels + c];
                total += static_cast<double>(e) * e;
                sum += e;
                error[p * channels + c] = scale * e;
            }
            gradient[y.bias + c] += scale * sum;
        }
        return total;
    }

    void backward(Index start, Index count) {
        for (std::size_t l = layers.size() - 1; l > 0; --l) {
            const Layer &y = layers[l];
            const bool last = l + 1 == layers.size();
            const F *delta = last ? error.data() : slopes[l].data(), *below = values[l - 1].data();
            const F *weight = last ? &theta[y.weight] : &scaled[y.weight];
            F *to = &gradient[y.weight], *slope = slopes[l - 1].data();
            with_width(y.wide_in, [&](auto wide) {
                product<Into::plus>(y.wide, wide, count, delta, 1, y.wide, rows_of(below, wide), to, wide);
                product<Into::times>(count, wide, y.wide, delta, y.wide, 1, rows_of(weight, wide), slope, wide);
            });
            if (!last) add_rows(delta, count, y.wide, &gradient[y.bias]);
        }
        // W and b of the first layer lie together: a matrix with three rows.
        with_width(layers[0].wide, [&](auto wide) {
            const F *delta = slopes[0].data(), *x = &inputs[3 * start];
            product<Into::plus>(3, wide, count, x, 1, 3, rows_of(delta, wide), &gradient[0], wide);
        });
    }
};

// Fits one network after the other: targets (B, pixels, channels), parameters (B, P), psnr and steps (B).
template <typename F>
void fit(const Problem<F> &problem, const Schedule &s, Span<const F> targets, Span<F> parameters, Span<F> psnr,
         Span<Index> steps) {
    check(problem);
    const Index pixels = problem.pixels() * problem.channels(), size = problem.parameters(), count = psnr.count;
    expect(0 <= s.steps && 0 <= s.look && s.span > 0, "steps and look must be 0 or more, and span positive");
    psnr.expect_count(count, "psnr does not begin at a number");
    steps.expect_count(count, "steps must be as many as psnr");
    targets.expect_count(count * pixels, "targets must be (B, pixels, channels)");
    parameters.expect_count(count * size, "parameters must be (B, P)");
    Network<F> network(problem);
    for (Index b = 0; b < count; ++b) {
        network.begin(parameters.data + b * size);
        for (Index step = 0;; ++step) {
            const double error = network.pass(targets.data + b * pixels, step < s.steps);
            const bool look = s.look && step % s.look == 0;
            psnr.data[b] = static_cast<F>(-10 * std::log10(error / (s.span * s.span)));
            steps.data[b] = step;
            if (step == s.steps || (look && psnr.data[b] >= static_cast<F>(s.psnr))) break;
            network.adam(step + 1, s);
        }
        network.read(parameters.data + b * size);
    }
}

template <typename F>
void gradient(const Problem<F> &problem, Span<const F> target, Span<const F> parameters, Span<F> out,
              Span<double> error) {
    check(problem);
    target.expect_count(problem.pixels() * problem.channels(), "target must be (pixels, channels)");
    parameters.expect_count(problem.parameters(), "parameters must be (P,)");
    out.expect_count(problem.parameters(), "the gradient must be (P,)");
    error.expect_count(1, "the error is one number");
    Network<F> network(problem);
    network.begin(parameters.data);
    *error.data = network.pass(target.data);
    network.read_gradient(out.data);
}

}  // namespace

#define EXPORT(F)                                                                                                      \
    extern "C" const char *fit_##F(const Problem<F> *problem, const Schedule *schedule, const Span<const F> *targets,  \
                                   const Span<F> *parameters, const Span<F> *psnr, const Span<Index> *steps) {         \
        return guarded([&] { fit<F>(*problem, *schedule, *targets, *parameters, *psnr, *steps); });                    \
    }                                                                                                                  \
    extern "C" const char *gradient_##F(const Problem<F> *problem, const Span<const F> *target,                        \
                                        const Span<const F> *parameters, const Span<F> *out,                           \
                                        const Span<double> *error) {                                                   \
        return guarded([&] { gradient<F>(*problem, *target, *parameters, *out, *error); });                            \
    }

EXPORT(float)
EXPORT(double)
