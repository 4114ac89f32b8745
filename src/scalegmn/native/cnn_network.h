// A small convolutional network and its gradient, a few images at a time in the nearest caches.
//
// Maps are (image, row, column, channel), so that all sums run along whole vectors of channels. Channels of hidden
// layers are padded with zeros to whole vectors: their weights get no gradient and stay zero. A place is a position of
// a convolution's output in one of the images; a tap is one of the numbers below it that a place reads. Both are
// tables of offsets, so that blocks of places run across the ends of rows and images, whatever kernel and stride.

#pragma once

#include "products.h"

namespace {

// Images at a time, channels to which hidden layers are padded, and rows that are enough for narrow stripes.
constexpr Index TILE = 4, PAD = BYTES / 4, TALL = 6;
// Channels for which a layer with dropout has random numbers are a multiple of this, whatever the processor.
constexpr Index DRAWN = 8;

inline Index padded(Index n, Index to = PAD) { return (n + to - 1) / to * to; }

// A function of its own has all registers to itself.
#define APART __attribute__((noinline))

struct Shape {
    Span<const Index> channels;  // of the images and of every convolution
    Index side, kernel, stride, classes;
    int activation;

    Index convolutions() const { return channels.count - 1; }
    Index pixels() const { return channels.data[0] * side * side; }
    Index after(Index side) const { return (side - kernel) / stride + 1; }

    Index parameters() const {
        Index total = 0;
        for (Index l = 0; l < convolutions(); ++l)
            total += (channels.data[l] * kernel * kernel + 1) * channels.data[l + 1];
        return total + (channels.data[convolutions()] + 1) * classes;
    }

    // Random numbers that a step with dropout reads.
    Index noise(Index batch) const {
        Index total = 0;
        for (Index l = 1, edge = after(side); l < channels.count; ++l, edge = after(edge))
            total += batch * edge * edge * padded(channels.data[l], DRAWN);
        return total;
    }
};

enum Optimiser : int { SGD, ADAM, RMSPROP };

struct Rule {
    int optimiser;
    double lr, l2, dropout, clip;
};

inline void check(const Shape &s) {
    expect(2 <= s.channels.count && s.channels.count <= 64 && s.channels.data, "there must be 1 to 63 convolutions");
    s.channels.expect_within(1, 1 << 16, "channels must be 1 to 65536");
    expect(1 <= s.kernel && s.kernel <= s.side && s.side <= 1 << 14, "the kernel must fit the images");
    expect(1 <= s.stride && s.stride <= 1 << 14, "stride must be 1 or more");
    expect(1 <= s.classes && s.classes <= 1 << 16, "classes must be 1 to 65536");
    expect(s.activation == RELU || s.activation == TANH, "activation must be 1 or 2");
    Index side = s.side;
    for (Index l = 0; l < s.convolutions(); ++l) {
        expect(side >= s.kernel, "the images are too small for so many convolutions");
        side = s.after(side);
    }
}

struct Layer {
    Index in, out, wide_in, wide;  // channels, and the distance between neighbours in the maps
    Index side_in, side;
    Index weight, bias;                // places in the padded parameters; weights are (tap, wide)
    std::vector<Index> places, taps;   // offsets in the maps below

    // Random numbers of one image.
    Index drawn() const { return side * side * padded(out, DRAWN); }

    // Calls work(place in the map, place in its random numbers, channels), or once for all if these are padded alike.
    template <typename Work>
    void with_noise(Index places, Work work) const {
        const Index each = padded(out, DRAWN);
        if (each == wide) return work(Index(0), Index(0), places * wide);
        for (Index p = 0; p < places; ++p) work(p * wide, p * each, each);
    }
};

template <typename F>
class Network {
    using V = Vec<F>;

  public:
    Network(const Shape &shape, const Rule &rule, Index samples)
        : kind(shape.activation), rule(rule), samples(samples), classes(shape.classes) {
        Index place = 0, side = shape.side;
        for (Index l = 0; l < shape.convolutions(); ++l) {
            const Index in = shape.channels.data[l], out = shape.channels.data[l + 1], wide = padded(out);
            const Index after = shape.after(side), depth = shape.kernel * shape.kernel * in;
            layers.push_back({in, out, l ? padded(in) : in, wide, side, after, place, place + depth * wide, {}, {}});
            add_tables(layers.back(), shape);
            place += (depth + 1) * wide;
            side = after;
        }
        head = place;
        features = layers.back().wide;
        head_bias = head + classes * features;
        place = padded(head_bias + classes);
        for (auto *v : {&theta, &gradient, &first, &second}) v->assign(place, F(0));
        maps.emplace_back(TILE * shape.pixels(), F(0));
        for (const Layer &y : layers) {
            maps.emplace_back(TILE * y.wide * y.side * y.side, F(0));
            deltas.emplace_back(maps.back().size(), F(0));
            turned.emplace_back(y.taps.size() / y.in * y.out * y.wide_in, F(0));
        }
        error.assign(classes, F(0));
        for (auto *v : {&pooled, &pooled_delta}) v->assign(features, F(0));
    }

    void begin(const F *row) {
        visit([&](F &mine, Index i) { mine = row[i]; });
    }

    void read(F *row) {
        visit([&](F &mine, Index i) { row[i] = mine; });
    }

    // Where the image (channels, side, side) goes that stands at `slot` of the tile; `value` converts its numbers.
    template <typename Pixel, typename Value>
    void load(Index slot, const Pixel *image, Value value) {
        const Index channels = layers[0].in, size = layers[0].side_in * layers[0].side_in;
        F *to = &maps[0][slot * channels * size];
        if (channels == 1) {
#pragma omp simd
            for (Index i = 0; i < size; ++i) to[i] = value(image[i]);
            return;
        }
        for (Index c = 0; c < channels; ++c)
            for (Index i = 0; i < size; ++i) to[i * channels + c] = value(image[c * size + i]);
    }

    // The maps of all layers for the first images of the tile; `noise` begins with the numbers of image 0 of the batch.
    void forward(Index count, const F *noise, Index start) {
        for (std::size_t l = 0; l < layers.size(); ++l) {
            const Layer &y = layers[l];
            const Index places = count * y.side * y.side, size = places * y.wide;
            F *h = maps[l + 1].data();
            in_stripes<F>(y.wide, TALL, [&](Index j, auto wide) { convolve<wide>(y, maps[l].data(), count, j, h); });
            if (kind == TANH) {
#pragma omp simd
                for (Index i = 0; i < size; ++i) h[i] = tangent(h[i]);
            }
            if (noise) drop(y, h, noise + start * y.drawn(), places);
            if (noise) noise += samples * y.drawn();
        }
    }

    // Softmax cross-entropy of the image at `slot`; `error` becomes its derivative by the logits.
    double compare(Index slot, Index label, bool &correct) {
        const Layer &y = layers.back();
        const Index size = y.side * y.side;
        std::fill(pooled.begin(), pooled.end(), F(0));
        add_rows(&maps.back()[slot * size * features], size, features, pooled.data());
        for (F &v : pooled) v /= size;
        for (Index k = 0; k < classes; ++k)
            error[k] = dot<true>(&theta[head + k * features], pooled.data(), features) + theta[head_bias + k];
        const Index best = std::max_element(error.begin(), error.end()) - error.begin();
        correct = best == label;
        const F largest = error[best], wanted = error[label];
        F total = 0;
        for (F &e : error) total += e = std::exp(e - largest);
        for (F &e : error) e /= total;
        error[label] -= 1;
        return std::log(static_cast<double>(total)) - (wanted - largest);
    }

    // Adds to the gradient of the mean over the batch what the images of the tile contribute.
    void backward(Index count, const Index *labels, const F *noise, Index start) {
        for (Index i = 0; i < count; ++i) head_backward(i, labels[i]);
        if (noise)
            for (const Layer &y : layers) noise += samples * y.drawn();
        for (std::size_t l = layers.size(); l-- > 0;) {
            const Layer &y = layers[l];
            const Index places = count * y.side * y.side;
            F *delta = deltas[l].data();
            if (noise) noise -= samples * y.drawn();
            slope(y, delta, maps[l + 1].data(), noise ? noise + start * y.drawn() : nullptr, places);
            add_rows(delta, places, y.wide, &gradient[y.bias]);
            const F *x = maps[l].data(), *weight = turned[l].data();
            in_stripes<F>(y.wide, TALL, [&](Index j, auto wide) { weight_gradient<wide>(y, x, delta, places, j); });
            if (l == 0) break;
            F *below = deltas[l - 1].data();
            std::fill_n(below, count * y.side_in * y.side_in * y.wide_in, F(0));
            in_stripes<F, 32>(padded(y.in, DRAWN), TALL,
                              [&](Index j, auto units) { spread<units>(y, weight, delta, places, j, below); });
        }
    }

    // Clears the gradient, and turns the weights round for the way back: per kernel entry (out, wide_in).
    void prepare() {
        std::fill(gradient.begin(), gradient.end(), F(0));
        for (std::size_t l = 1; l < layers.size(); ++l) {
            const Layer &y = layers[l];
            const Index entries = y.taps.size() / y.in;
            for (Index e = 0; e < entries; ++e)
                for (Index o = 0; o < y.out; ++o)
                    for (Index c = 0; c < y.in; ++c)
                        turned[l][(e * y.out + o) * y.wide_in + c] = theta[y.weight + (e * y.in + c) * y.wide + o];
        }
    }

    // Decay, clipping and the optimiser's step, which counts from 1.
    void update(Index step) {
        decay();
        F *t = theta.data(), *g = gradient.data(), *m = first.data(), *v = second.data();
        const Index count = theta.size();
        const double norm = std::sqrt(square_of(g, count));
        // An infinite gradient says nothing: the step goes on with zero.
        const bool finite = std::isfinite(norm);
        const F scale = finite ? rule.clip / std::max(norm, rule.clip) : 0;
        for (Index i = 0; i < count; ++i) g[i] = finite ? g[i] * scale : F(0);
        const F lr = rule.lr;
        if (rule.optimiser == SGD) {
#pragma omp simd
            for (Index i = 0; i < count; ++i) t[i] -= lr * g[i];
        } else if (rule.optimiser == RMSPROP) {
#pragma omp simd
            for (Index i = 0; i < count; ++i) {
                v[i] = F(0.9) * v[i] + F(0.1) * g[i] * g[i];
                t[i] -= lr * g[i] / (std::sqrt(v[i]) + F(1e-7));
            }
        } else {
            const F rate = rule.lr / (1 - std::pow(0.9, step)), size = 1 / (1 - std::pow(0.999, step));
#pragma omp simd
            for (Index i = 0; i < count; ++i) {
                m[i] = F(0.9) * m[i] + F(0.1) * g[i];
                v[i] = F(0.999) * v[i] + F(0.001) * g[i] * g[i];
                t[i] -= rate * m[i] / (std::sqrt(v[i] * size) + F(1e-7));
            }
        }
    }

  private:
    int kind;
    Rule rule;
    Index samples, classes, head, head_bias, features;
    std::vector<Layer> layers;
    Array<F> theta, gradient, first, second;
    std::vector<Array<F>> turned, maps, deltas;
    Array<F> error, pooled, pooled_delta;

    void add_tables(Layer &y, const Shape &shape) {
        const Index size = y.side_in * y.side_in * y.wide_in, down = y.side_in * y.wide_in;
        for (Index n = 0; n < TILE; ++n)
            for (Index i = 0; i < y.side; ++i)
                for (Index j = 0; j < y.side; ++j)
                    y.places.push_back(n * size + shape.stride * (i * down + j * y.wide_in));
        for (Index i = 0; i < shape.kernel; ++i)
            for (Index j = 0; j < shape.kernel; ++j)
                for (Index c = 0; c < y.in; ++c) y.taps.push_back(i * down + j * y.wide_in + c);
    }

    // Visit the parameters in the order W1, b1, W2, b2, ..., weights (out, in, kernel).
    template <typename Visit>
    void visit(Visit work) {
        Index i = 0;
        for (const Layer &y : layers) {
            const Index entries = y.taps.size() / y.in;
            for (Index o = 0; o < y.out; ++o)
                for (Index c = 0; c < y.in; ++c)
                    for (Index e = 0; e < entries; ++e) work(theta[y.weight + (e * y.in + c) * y.wide + o], i++);
            for (Index o = 0; o < y.out; ++o) work(theta[y.bias + o], i++);
        }
        for (Index k = 0; k < classes; ++k)
            for (Index c = 0; c < layers.back().out; ++c) work(theta[head + k * features + c], i++);
        for (Index k = 0; k < classes; ++k) work(theta[head_bias + k], i++);
    }

    // z = W (taps of the place) + b, for some of the channels; relu at once.
    template <int wide>
    APART void convolve(const Layer &y, const F *x, Index count, Index column, F *z) {
        const F *weight = &theta[y.weight + column];
        const V *bias = reinterpret_cast<const V *>(&theta[y.bias + column]);
        const Index *taps = y.taps.data(), depth = y.taps.size();
        const bool relu = kind == RELU;
        in_blocks<wide>(count * y.side * y.side, [&](Index p, auto tall) {
            V sum[tall][wide];
            const F *rows[tall];
            for (int r = 0; r < tall; ++r) {
                rows[r] = x + y.places[p + r];
                for (int j = 0; j < wide; ++j) sum[r][j] = bias[j];
            }
            accumulate(sum, depth, weight, y.wide, [&](Index k) {
                const Index tap = taps[k];
                return [&rows, tap](int r) { return rows[r][tap]; };
            });
            for (int r = 0; r < tall; ++r)
                for (int j = 0; j < wide; ++j) {
                    // Written so that NaN stays NaN.
                    const V value = relu ? (sum[r][j] < V{} ? V{} : sum[r][j]) : sum[r][j];
                    reinterpret_cast<V *>(z + (p + r) * y.wide + column)[j] = value;
                }
        });
    }

    // dW += taps^T delta, for some of the channels.
    template <int wide>
    APART void weight_gradient(const Layer &y, const F *x, const F *delta, Index count, Index column) {
        const Index *places = y.places.data();
        in_blocks<wide>(y.taps.size(), [&](Index k, auto tall) {
            V sum[tall][wide] = {};
            Index taps[tall];
            for (int r = 0; r < tall; ++r) taps[r] = y.taps[k + r];
            accumulate(sum, count, delta + column, y.wide, [&](Index p) {
                const F *place = x + places[p];
                return [&taps, place](int r) { return place[taps[r]]; };
            });
            for (int r = 0; r < tall; ++r)
                for (int j = 0; j < wide; ++j)
                    reinterpret_cast<V *>(&gradient[y.weight + (k + r) * y.wide + column])[j] += sum[r][j];
        });
    }

    // Adds W^T delta of every place to what it has read, for so many times 32 bytes of the channels below. Places overlap,
    // and the order of their sums depends on how many go together: as many as with vectors of 32 bytes, always.
    template <int units>
    APART void spread(const Layer &y, const F *weight, const F *delta, Index count, Index column, F *below) {
        constexpr int wide = (units * 32 + BYTES - 1) / BYTES;
        in_blocks_of<tall_of(units, 32)>(count, [&](Index p, auto tall) {
            F *rows[tall];
            for (int r = 0; r < tall; ++r) rows[r] = below + y.places[p + r] + column;
            const F *from = delta + p * y.wide, *right = weight + column;
            for (std::size_t k = 0; k < y.taps.size(); k += y.in, right += y.out * y.wide_in) {
                const Index tap = y.taps[k];
                V sum[tall][wide];
                for (int r = 0; r < tall; ++r)
                    for (int j = 0; j < wide; ++j) sum[r][j] = reinterpret_cast<V *>(rows[r] + tap)[j];
                accumulate(sum, y.out, right, y.wide_in, [&](Index o) {
                    return [from, o, &y](int r) { return from[r * y.wide + o]; };
                });
                for (int r = 0; r < tall; ++r)
                    for (int j = 0; j < wide; ++j) reinterpret_cast<V *>(rows[r] + tap)[j] = sum[r][j];
            }
        });
    }

    // The head's gradient for the image at `slot`, and the derivative by every number of its last map.
    void head_backward(Index slot, Index label) {
        bool correct;
        compare(slot, label, correct);
        const Index size = layers.back().side * layers.back().side;
        std::fill(pooled_delta.begin(), pooled_delta.end(), F(0));
        for (Index k = 0; k < classes; ++k) {
            const F e = error[k] / samples, *w = &theta[head + k * features];
            F *g = &gradient[head + k * features];
            gradient[head_bias + k] += e;
#pragma omp simd
            for (Index c = 0; c < features; ++c) {
                g[c] += e * pooled[c];
                pooled_delta[c] += e * w[c] / size;
            }
        }
        F *delta = &deltas.back()[slot * size * features];
        for (Index p = 0; p < size; ++p) std::copy_n(pooled_delta.data(), features, delta + p * features);
    }

    // Dropout: values whose random number is below the rate become 0, the others grow.
    void drop(const Layer &y, F *values, const F *noise, Index places) {
        const F rate = rule.dropout, scale = 1 / (1 - rate);
        y.with_noise(places, [=](Index at, Index from, Index count) {
            F *h = values + at;
            const F *u = noise + from;
#pragma omp simd
            for (Index i = 0; i < count; ++i) h[i] = u[i] >= rate ? h[i] * scale : F(0);
        });
    }

    // delta times the slope of activation and dropout, read off the values h after both.
    void slope(const Layer &y, F *delta, const F *h, const F *noise, Index places) {
        const Index size = places * y.wide;
        const F rate = noise ? rule.dropout : 0, scale = 1 / (1 - rate);
        if (kind == RELU) {
#pragma omp simd
            for (Index i = 0; i < size; ++i) delta[i] = h[i] > 0 ? delta[i] * scale : F(0);
        } else if (noise) {
            y.with_noise(places, [=](Index at, Index from, Index count) {
                F *d = delta + at;
                const F *v = h + at, *u = noise + from;
#pragma omp simd
                for (Index i = 0; i < count; ++i) {
                    const F value = v[i] * (1 - rate);
                    d[i] = u[i] >= rate ? d[i] * scale * (1 - value * value) : F(0);
                }
            });
        } else {
#pragma omp simd
            for (Index i = 0; i < size; ++i) delta[i] *= 1 - h[i] * h[i];
        }
    }

    // The gradient of l2 |W|^2; biases do not decay.
    void decay() {
        const F rate = 2 * rule.l2;
        const auto part = [&](Index from, Index to) {
            for (Index i = from; i < to; ++i) gradient[i] += rate * theta[i];
        };
        for (const Layer &y : layers) part(y.weight, y.bias);
        part(head, head_bias);
    }
};

}  // namespace
