// Trains and evaluates small convolutional networks, each on its own from the first step to the last.

#include "cnn_network.h"

namespace {

// One step per row of `chosen`, (steps, batch); with dropout a step's random numbers begin at its entry of `starts`.
template <typename F>
struct Data {
    const std::uint8_t *images;  // (N, channels, side, side)
    const Index *labels;
    const std::int32_t *chosen;
    Index steps, batch;
    const F *noise;
    const Index *starts;
};

template <typename F>
void train(const Shape &shape, const Rule &rule, const Data<F> &data, F *parameters) {
    Network<F> network(shape, rule, data.batch);
    network.begin(parameters);
    const Index size = shape.channels[0] * shape.side * shape.side;
    Index labels[TILE];
    for (Index step = 0; step < data.steps; ++step) {
        const std::int32_t *chosen = data.chosen + step * data.batch;
        const F *noise = rule.dropout > 0 ? data.noise + data.starts[step] : nullptr;
        network.prepare();
        for (Index start = 0; start < data.batch; start += TILE) {
            const Index count = std::min(TILE, data.batch - start);
            for (Index i = 0; i < count; ++i) {
                const Index image = chosen[start + i];
                labels[i] = data.labels[image];
                network.load(i, data.images + image * size, [](std::uint8_t v) { return v * F(2.0 / 255) - 1; });
            }
            // The next images come from anywhere in the memory while these are worked on.
            const Index next = step * data.batch + start + count;
            for (Index i = next; i < std::min(next + TILE, data.steps * data.batch); ++i)
                for (Index j = 0; j < size; j += 64) __builtin_prefetch(data.images + data.chosen[i] * size + j);
            network.forward(count, noise, start);
            network.backward(count, labels, noise, start);
        }
        network.update(step + 1);
    }
    network.read(parameters);
}

template <typename F>
void evaluate(const Shape &shape, Index images, const F *x, const Index *labels, const F *parameters, double *out) {
    Network<F> network(shape, Rule{}, images);
    network.begin(parameters);
    const Index size = shape.channels[0] * shape.side * shape.side;
    out[0] = out[1] = 0;
    for (Index start = 0; start < images; start += TILE) {
        const Index count = std::min(TILE, images - start);
        for (Index i = 0; i < count; ++i) network.load(i, x + (start + i) * size, [](F v) { return v; });
        network.forward(count, nullptr, 0);
        for (Index i = 0; i < count; ++i) {
            bool correct;
            out[1] += network.compare(i, labels[start + i], correct);
            out[0] += correct;
        }
    }
}

}  // namespace

#define EXPORT(F)                                                                                                     \
    extern "C" void train_##F(const Shape *shape, const Rule *rule, const Data<F> *data, F *parameters) {             \
        train<F>(*shape, *rule, *data, parameters);                                                                   \
    }                                                                                                                 \
    extern "C" void evaluate_##F(const Shape *shape, Index images, const F *x, const Index *labels,                   \
                                 const F *parameters, double *out) {                                                  \
        evaluate<F>(*shape, images, x, labels, parameters, out);                                                      \
    }

EXPORT(float)
EXPORT(double)
