// Trains and evaluates small convolutional networks, each on its own from the first step to the last.

#include "cnn_network.h"

namespace {

// One step per row of `chosen`, (steps, batch); with dropout a step's random numbers begin at its entry of `starts`.
template <typename F>
struct Data {
    Span<const std::uint8_t> images;  // (N, channels, side, side)
    Span<const Index> labels;
    Span<const std::int32_t> chosen;
    Index batch;
    Span<const F> noise;
    Span<const Index> starts;
};

// Labels are the one thing here that comes from a file as it is.
inline void check_labels(const Shape &shape, Span<const Index> labels, Index count) {
    labels.expect_count(count, "there must be one label per image");
    labels.expect_within(0, shape.classes - 1, "a label is none of the classes");
}

template <typename F>
void check(const Shape &shape, const Rule &rule, const Data<F> &data, Span<F> parameters) {
    check(shape);
    expect(SGD <= rule.optimiser && rule.optimiser <= RMSPROP, "optimiser must be 0, 1 or 2");
    expect(0 <= rule.dropout && rule.dropout < 1 && rule.clip > 0, "dropout must be 0 to 1 and clip positive");
    expect(0 < data.batch && data.batch <= 1 << 24, "batch must be 1 or more");
    const Index images = data.images.count / shape.pixels(), steps = data.chosen.count / data.batch;
    data.images.expect_count(images * shape.pixels(), "images must be (N, channels, side, side)");
    check_labels(shape, data.labels, images);
    data.chosen.expect_count(steps * data.batch, "chosen must be (steps, batch)");
    data.chosen.expect_within(0, images - 1, "a chosen image is none of the images");
    parameters.expect_count(shape.parameters(), "parameters must be (P,)");
    if (rule.dropout == 0) return;
    data.noise.expect_count(data.noise.count, "noise does not begin at a number");
    data.starts.expect_count(steps, "every step needs a start of its noise");
    data.starts.expect_within(0, data.noise.count - shape.noise(data.batch), "a step reads beyond the noise");
}

template <typename F>
void train(const Shape &shape, const Rule &rule, const Data<F> &data, Span<F> parameters) {
    check(shape, rule, data, parameters);
    Network<F> network(shape, rule, data.batch);
    network.begin(parameters.data);
    const Index size = shape.pixels(), steps = data.chosen.count / data.batch;
    Index labels[TILE];
    for (Index step = 0; step < steps; ++step) {
        const std::int32_t *chosen = data.chosen.data + step * data.batch;
        const F *noise = rule.dropout > 0 ? data.noise.data + data.starts.data[step] : nullptr;
        network.prepare();
        for (Index start = 0; start < data.batch; start += TILE) {
            const Index count = std::min(TILE, data.batch - start);
            for (Index i = 0; i < count; ++i) {
                const Index image = chosen[start + i];
                labels[i] = data.labels.data[image];
                network.load(i, data.images.data + image * size, [](std::uint8_t v) { return v * F(2.0 / 255) - 1; });
            }
            // The next images come from anywhere in the memory while these are worked on.
            const Index next = step * data.batch + start + count;
            for (Index i = next; i < std::min(next + TILE, data.chosen.count); ++i)
                for (Index j = 0; j < size; j += 64) __builtin_prefetch(data.images.data + data.chosen.data[i] * size + j);
            network.forward(count, noise, start);
            network.backward(count, labels, noise, start);
        }
        network.update(step + 1);
    }
    network.read(parameters.data);
}

// How many images a network gets right, and the sum of its losses.
template <typename F>
void evaluate(const Shape &shape, Span<const F> x, Span<const Index> labels, Span<const F> parameters,
              Span<double> sums) {
    check(shape);
    const Index size = shape.pixels(), images = x.count / size;
    x.expect_count(images * size, "x must be (N, channels, side, side)");
    check_labels(shape, labels, images);
    parameters.expect_count(shape.parameters(), "parameters must be (P,)");
    sums.expect_count(2, "the result is two numbers");
    Network<F> network(shape, Rule{}, images);
    network.begin(parameters.data);
    double *out = sums.data;
    out[0] = out[1] = 0;
    for (Index start = 0; start < images; start += TILE) {
        const Index count = std::min(TILE, images - start);
        for (Index i = 0; i < count; ++i) network.load(i, x.data + (start + i) * size, [](F v) { return v; });
        network.forward(count, nullptr, 0);
        for (Index i = 0; i < count; ++i) {
            bool correct;
            out[1] += network.compare(i, labels.data[start + i], correct);
            out[0] += correct;
        }
    }
}

}  // namespace

#define EXPORT(F)                                                                                                    \
    extern "C" const char *train_##F(const Shape *shape, const Rule *rule, const Data<F> *data,                      \
                                     const Span<F> *parameters) {                                                    \
        return guarded([&] { train<F>(*shape, *rule, *data, *parameters); });                                        \
    }                                                                                                                \
    extern "C" const char *evaluate_##F(const Shape *shape, const Span<const F> *x, const Span<const Index> *labels, \
                                        const Span<const F> *parameters, const Span<double> *sums) {                 \
        return guarded([&] { evaluate<F>(*shape, *x, *labels, *parameters, *sums); });                               \
    }

EXPORT(float)
EXPORT(double)
