// The minibatch step of ppo/update.py for one pair of networks, whose sizes are constants here.
//
// It computes what `make_step` computes, in the same order of operations but for the order of
// sums; the Python function is the definition, and tests hold the two together. One call does
// any number of minibatches in a row on one thread.
//
// The build defines:
//   PPO_ACTOR, PPO_CRITIC  layer sizes from the observation to the outputs: 17, 64, 64, 6
//   PPO_ACTIVATION         Tanh, Relu, Elu or Silu
//   PPO_CHOICES            sizes of the categorical choices; absent for a Gaussian policy
//   PPO_MAX_ROWS           rows of the largest minibatch
//   PPO_LOG_STD_MIN, PPO_LOG_STD_MAX, PPO_BETA1, PPO_BETA2, PPO_ADAM_EPSILON,
//   PPO_ADVANTAGE_EPSILON

// The C library of Linux declares its vector functions (tanh of sixteen numbers at once) only to
// programs built with -ffast-math, of which this one takes some flags and not others.
#ifndef __FAST_MATH__
#define __FAST_MATH__ 1
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace {

// --- matrices: rows of whole vectors ---

#if defined(__AVX512F__)
constexpr int kLanes = 16, kTileRows = 6, kTileVectors = 4;
#else
constexpr int kLanes = 8, kTileRows = 4, kTileVectors = 2;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

constexpr int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

constexpr int kMaxRows = PPO_MAX_ROWS;

Vector& at(float* place) { return *reinterpret_cast<Vector*>(place); }
const Vector& at(const float* place) { return *reinterpret_cast<const Vector*>(place); }

// A matrix read element by element, so that it may be transposed.
struct Elements {
  const float* first;
  int per_row, per_column;
};

// c[Rows][Vectors] = a[Rows][depth] b[depth][Vectors] + bias[Vectors], in registers.
template <int Rows, int Vectors>
inline void tile(Elements a, int depth, const float* b, int b_row, const float* bias, float* c,
                 int c_row) {
  Vector sums[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) sums[r][v] = bias ? at(bias + v * kLanes) : Vector{};
  for (int k = 0; k < depth; ++k) {
    Vector row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = at(b + k * b_row + v * kLanes);
    for (int r = 0; r < Rows; ++r) {
      const float factor = a.first[r * a.per_row + k * a.per_column];
      for (int v = 0; v < Vectors; ++v) sums[r][v] += factor * row[v];
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) at(c + r * c_row + v * kLanes) = sums[r][v];
}

template <int Rows, int Columns>
inline void band(Elements a, int depth, const float* b, int b_row, const float* bias, float* c,
                 int c_row) {
  constexpr int step = kTileVectors * kLanes;
  int n = 0;
  for (; n + step <= Columns; n += step)
    tile<Rows, kTileVectors>(a, depth, b + n, b_row, bias ? bias + n : nullptr, c + n, c_row);
  for (; n < Columns; n += kLanes)
    tile<Rows, 1>(a, depth, b + n, b_row, bias ? bias + n : nullptr, c + n, c_row);
}

// c[rows][Columns] = a[rows][depth] b[depth][Columns] + bias[Columns]; Columns is padded.
template <int Columns>
void multiply(Elements a, int rows, int depth, const float* b, int b_row, const float* bias,
              float* c, int c_row) {
  int m = 0;
  for (; m + kTileRows <= rows; m += kTileRows) {
    band<kTileRows, Columns>(a, depth, b, b_row, bias, c + m * c_row, c_row);
    a.first += kTileRows * a.per_row;
  }
  for (; m < rows; ++m) {
    band<1, Columns>(a, depth, b, b_row, bias, c + m * c_row, c_row);
    a.first += a.per_row;
  }
}

// --- activations: the value, and its slope there ---

struct Tanh {
  static void apply(float x, float& value, float& slope) {
    value = std::tanh(x);
    slope = 1.0f - value * value;
  }
};
struct Relu {
  static void apply(float x, float& value, float& slope) {
    slope = x > 0.0f ? 1.0f : 0.0f;
    value = x * slope;
  }
};
struct Elu {
  static void apply(float x, float& value, float& slope) {
    const float below = std::exp(std::min(x, 0.0f));
    value = x > 0.0f ? x : std::expm1(std::min(x, 0.0f));
    slope = x > 0.0f ? 1.0f : below;
  }
};
struct Silu {
  static void apply(float x, float& value, float& slope) {
    const float gate = 1.0f / (1.0f + std::exp(-x));
    value = x * gate;
    slope = gate * (1.0f + x * (1.0f - gate));
  }
};
using Activation = PPO_ACTIVATION;

// --- networks ---

template <int In, int Out, int... Rest>
struct Network;

struct Nothing {};
template <int In, int... Rest>
struct After {
  using Layers = Network<In, Rest...>;
};
template <int In>
struct After<In> {
  using Layers = Nothing;
};

// A linear layer, and an activation and further layers if there are any. Parameters lie as
// PyTorch has them: weight [Out][In], bias [Out], then those of the further layers.
template <int In, int Out, int... Rest>
struct Network {
  static constexpr bool kLast = sizeof...(Rest) == 0;
  static constexpr int kIn = padded(In), kOut = padded(Out);

  typename After<Out, Rest...>::Layers rest;
  alignas(64) float weight[Out * kIn], transposed[In * kOut], bias[kOut];
  alignas(64) float weight_gradient[Out * kIn];
  alignas(64) float values[kMaxRows * kOut];     // of this layer, activated unless the last
  alignas(64) float slopes[kLast ? 1 : kMaxRows * kOut];
  alignas(64) float gradients[kMaxRows * kOut];  // of the loss, by the layer's linear outputs

  static constexpr int parameters() {
    if constexpr (kLast)
      return In * Out + Out;
    else
      return In * Out + Out + After<Out, Rest...>::Layers::parameters();
  }

  void load(const float* source) {
    for (int o = 0; o < Out; ++o)
      for (int i = 0; i < In; ++i)
        weight[o * kIn + i] = transposed[i * kOut + o] = source[o * In + i];
    std::copy_n(source + In * Out, Out, bias);
    if constexpr (!kLast) rest.load(source + In * Out + Out);
  }

  // Outputs of the last layer, [rows][padded].
  const float* forward(const float* inputs, int rows) {
    multiply<kOut>({inputs, kIn, 1}, rows, In, transposed, kOut, bias, values, kOut);
    if constexpr (kLast) {
      return values;
    } else {
      for (int i = 0; i < rows * kOut; ++i) Activation::apply(values[i], values[i], slopes[i]);
      return rest.forward(values, rows);
    }
  }

  // Where the gradient by the outputs belongs, [rows][padded].
  float* output_gradients() {
    if constexpr (kLast)
      return gradients;
    else
      return rest.output_gradients();
  }

  void backward(const float* inputs, int rows, float* target) {
    if constexpr (!kLast) {
      rest.backward(values, rows, target + In * Out + Out);
      using Next = typename After<Out, Rest...>::Layers;
      multiply<kOut>({rest.gradients, Next::kOut, 1}, rows, Next::outputs(), rest.weight, kOut,
                     nullptr, gradients, kOut);
      for (int i = 0; i < rows * kOut; ++i) gradients[i] *= slopes[i];
    }
    multiply<kIn>({gradients, 1, kOut}, Out, rows, inputs, kIn, nullptr, weight_gradient, kIn);
    for (int o = 0; o < Out; ++o) std::copy_n(weight_gradient + o * kIn, In, target + o * In);
    float sums[kOut] = {};
    for (int b = 0; b < rows; ++b)
      for (int o = 0; o < kOut; ++o) sums[o] += gradients[b * kOut + o];
    std::copy_n(sums, Out, target + In * Out);
  }

  static constexpr int outputs() { return Out; }
};

using Actor = Network<PPO_ACTOR>;
using Critic = Network<PPO_CRITIC>;

constexpr int last_of(std::initializer_list<int> sizes) { return *(sizes.end() - 1); }
constexpr int kObservation = *std::initializer_list<int>{PPO_ACTOR}.begin();
constexpr int kOutputs = last_of({PPO_ACTOR});
constexpr int kOutputRow = padded(kOutputs);

// --- policies: log-probability, entropy, and the gradients of both by the outputs ---

#ifndef PPO_CHOICES
struct Policy {  // an independent normal distribution in each dimension
  static constexpr int kFree = kOutputs;  // its own parameters: log_std
  using Action = float;
  static constexpr int kAction = kOutputs;
  static constexpr float kHalfLog2Pi = 0.91893853320467274178f;

  float log_std[kFree], inverse_std[kFree], log_std_gradient[kFree] = {};
  float sum_of_log_std = 0.0f;

  explicit Policy(const float* free) {
    for (int a = 0; a < kFree; ++a) {
      log_std[a] = std::min(std::max(free[a], PPO_LOG_STD_MIN), PPO_LOG_STD_MAX);
      inverse_std[a] = std::exp(-log_std[a]);
      sum_of_log_std += log_std[a];
    }
  }
  float log_prob(const float* mean, const Action* action) const {
    float sum = 0.0f;
    for (int a = 0; a < kAction; ++a) {
      const float z = (action[a] - mean[a]) * inverse_std[a];
      sum -= 0.5f * z * z + kHalfLog2Pi + log_std[a];
    }
    return sum;
  }
  float entropy(const float*) const {
    return sum_of_log_std + kOutputs * (0.5f + kHalfLog2Pi);
  }
  // Gradients of `by_log_prob * log_prob + by_entropy * entropy`.
  void differentiate(const float* mean, const Action* action, float by_log_prob, float by_entropy,
                     float* mean_gradient) {
    for (int a = 0; a < kAction; ++a) {
      const float z = (action[a] - mean[a]) * inverse_std[a];
      mean_gradient[a] = by_log_prob * z * inverse_std[a];
      log_std_gradient[a] += by_log_prob * (z * z - 1.0f) + by_entropy;
    }
  }
};
#else
struct Policy {  // independent categorical distributions over parts of the outputs
  static constexpr int kFree = 0;
  using Action = std::int64_t;
  static constexpr int kChoices[] = {PPO_CHOICES};
  static constexpr int kAction = sizeof(kChoices) / sizeof(int);

  const float* log_std_gradient = nullptr;

  explicit Policy(const float*) {}

  static void log_probs(const float* logits, int size, float* result) {
    const float highest = *std::max_element(logits, logits + size);
    float sum = 0.0f;
    for (int i = 0; i < size; ++i) sum += std::exp(logits[i] - highest);
    const float log_sum = highest + std::log(sum);
    for (int i = 0; i < size; ++i) result[i] = logits[i] - log_sum;
  }
  float log_prob(const float* logits, const Action* action) const {
    float sum = 0.0f, log_p[kOutputs];
    for (int c = 0, first = 0; c < kAction; first += kChoices[c++]) {
      log_probs(logits + first, kChoices[c], log_p);
      sum += log_p[action[c]];
    }
    return sum;
  }
  float entropy(const float* logits) const {
    float sum = 0.0f, log_p[kOutputs];
    for (int c = 0, first = 0; c < kAction; first += kChoices[c++]) {
      log_probs(logits + first, kChoices[c], log_p);
      for (int i = 0; i < kChoices[c]; ++i) sum -= std::exp(log_p[i]) * log_p[i];
    }
    return sum;
  }
  void differentiate(const float* logits, const Action* action, float by_log_prob,
                     float by_entropy, float* gradient) {
    float log_p[kOutputs];
    for (int c = 0, first = 0; c < kAction; first += kChoices[c++]) {
      log_probs(logits + first, kChoices[c], log_p);
      float entropy = 0.0f;
      for (int i = 0; i < kChoices[c]; ++i) entropy -= std::exp(log_p[i]) * log_p[i];
      for (int i = 0; i < kChoices[c]; ++i) {
        const float p = std::exp(log_p[i]);
        gradient[first + i] = by_log_prob * ((i == action[c] ? 1.0f : 0.0f) - p) -
                              by_entropy * p * (log_p[i] + entropy);
      }
    }
  }
};
#endif

constexpr int kParameters = Policy::kFree + Actor::parameters() + Critic::parameters();

// --- the step ---

struct Workspace {
  Actor actor;
  Critic critic;
  alignas(64) float observations[kMaxRows * padded(kObservation)];
  alignas(64) float gradient[kParameters];
  float advantages[kMaxRows];
};

void normalize(const float* advantages, int rows, float* result) {
  double mean = 0.0, squares = 0.0;
  for (int b = 0; b < rows; ++b) mean += static_cast<double>(advantages[b]) - advantages[0];
  mean /= rows;
  for (int b = 0; b < rows; ++b) {
    const double centred = static_cast<double>(advantages[b]) - advantages[0] - mean;
    squares += centred * centred;
  }
  const double spread = std::sqrt(squares / std::max(rows - 1, 1)) + PPO_ADVANTAGE_EPSILON;
  for (int b = 0; b < rows; ++b)
    result[b] = static_cast<float>(
        (static_cast<double>(advantages[b]) - advantages[0] - mean) / spread);
}

}  // namespace

extern "C" {

// Rows of one minibatch, contiguous.
struct Minibatch {
  const float* observations;  // [rows][D]
  const void* actions;        // [rows][A], float or int64
  const float* log_probs;     // [rows], and so are the others
  const float* values;
  const float* advantages;
  const float* returns;
  std::int64_t rows;
};

struct Settings {
  float clip_range, ent_coef, vf_coef, max_grad_norm;
  float kl_limit;       // infinite where there is none
  float clip_range_vf;  // infinite where there is none
  std::int32_t normalize_advantages;
};

// What a step changes.
struct Learner {
  float *parameters, *exp_avg, *exp_avg_sq;  // [P]
  float* step;                               // []
  std::uint8_t* active;                      // []
};

constexpr int kMetrics = 9;  // in the order of StepMetrics

int parameter_count() { return kParameters; }

void run_minibatches(const Learner* learner, const Minibatch* minibatches, int count,
                     const Settings* settings, const float* learning_rates, float* metrics) {
  static thread_local std::unique_ptr<Workspace> kept(new Workspace());
  Workspace& work = *kept;
  float* const parameters = learner->parameters;
  constexpr int actor_start = Policy::kFree, critic_start = actor_start + Actor::parameters();
  constexpr int observation_row = padded(kObservation), value_row = padded(1);

  for (int n = 0; n < count; ++n, metrics += kMetrics) {
    const Minibatch& batch = minibatches[n];
    const int rows = static_cast<int>(batch.rows);
    for (int b = 0; b < rows; ++b)
      std::copy_n(batch.observations + b * kObservation, kObservation,
                  work.observations + b * observation_row);
    work.actor.load(parameters + actor_start);
    work.critic.load(parameters + critic_start);
    const float* outputs = work.actor.forward(work.observations, rows);
    const float* values = work.critic.forward(work.observations, rows);
    if (settings->normalize_advantages)
      normalize(batch.advantages, rows, work.advantages);
    else
      std::copy_n(batch.advantages, rows, work.advantages);

    // The loss, and its gradients by the outputs of both networks.
    Policy policy(parameters);
    const auto* actions = static_cast<const Policy::Action*>(batch.actions);
    float* output_gradients = work.actor.output_gradients();
    float* value_gradients = work.critic.output_gradients();
    const float low = 1.0f - settings->clip_range, high = 1.0f + settings->clip_range;
    float policy_loss = 0.0f, value_loss = 0.0f, entropy = 0.0f, kl = 0.0f, clipped = 0.0f;
    for (int b = 0; b < rows; ++b) {
      const float* output = outputs + b * kOutputRow;
      const auto* action = actions + b * Policy::kAction;
      const float advantage = work.advantages[b];
      const float logratio = policy.log_prob(output, action) - batch.log_probs[b];
      const float ratio = std::exp(logratio);
      const float plain = ratio * advantage;
      const float bounded = std::min(std::max(ratio, low), high) * advantage;
      policy_loss -= std::min(plain, bounded);
      entropy += policy.entropy(output);
      kl += std::expm1(logratio) - logratio;
      clipped += std::fabs(ratio - 1.0f) > settings->clip_range ? 1.0f : 0.0f;
      policy.differentiate(output, action, plain <= bounded ? -plain / rows : 0.0f,
                           -settings->ent_coef / rows, output_gradients + b * kOutputRow);

      const float moved = values[b * value_row] - batch.values[b];
      const float limit = settings->clip_range_vf;
      const bool inside = std::fabs(moved) <= limit;
      const float value = inside ? values[b * value_row]
                                 : batch.values[b] + std::min(std::max(moved, -limit), limit);
      const float error = value - batch.returns[b];
      value_loss += error * error;
      value_gradients[b * value_row] =
          inside ? settings->vf_coef * 2.0f * error / rows : 0.0f;
    }
    policy_loss /= rows, value_loss /= rows, entropy /= rows, kl /= rows, clipped /= rows;
    const float loss =
        policy_loss - settings->ent_coef * entropy + settings->vf_coef * value_loss;

    // The gradient by the parameters, its norm, and whether to follow it.
    work.actor.backward(work.observations, rows, work.gradient + actor_start);
    work.critic.backward(work.observations, rows, work.gradient + critic_start);
    if constexpr (Policy::kFree > 0)
      std::copy_n(policy.log_std_gradient, Policy::kFree, work.gradient);
    float squares = 0.0f;
    for (int i = 0; i < kParameters; ++i) squares += work.gradient[i] * work.gradient[i];
    const float norm = std::sqrt(squares);
    const bool evaluated = *learner->active;
    const bool applied =
        evaluated && std::isfinite(loss) && std::isfinite(norm) && kl <= settings->kl_limit;
    *learner->active = applied;
    const float measured[kMetrics] = {policy_loss, value_loss, -entropy, loss, kl, clipped, norm,
                                      evaluated ? 1.0f : 0.0f, applied ? 1.0f : 0.0f};
    std::copy_n(measured, kMetrics, metrics);
    if (!applied) continue;

    // Adam, on the clipped gradient.
    const float scale = std::min(settings->max_grad_norm / (norm + 1e-6f), 1.0f);
    *learner->step += 1.0f;
    const float correction1 = static_cast<float>(1.0 - std::pow(PPO_BETA1, *learner->step));
    const float correction2 = static_cast<float>(1.0 - std::pow(PPO_BETA2, *learner->step));
    constexpr float new1 = static_cast<float>(1.0 - PPO_BETA1);
    constexpr float new2 = static_cast<float>(1.0 - PPO_BETA2);
    for (int i = 0; i < kParameters; ++i) {
      const float gradient = work.gradient[i] * scale;
      float& mean = learner->exp_avg[i];
      float& square = learner->exp_avg_sq[i];
      mean += new1 * (gradient - mean);
      square += new2 * (gradient * gradient - square);
      const float deviation = std::sqrt(square / correction2) + PPO_ADAM_EPSILON;
      parameters[i] -= learning_rates[i] * (mean / correction1) / deviation;
    }
    for (int a = 0; a < Policy::kFree; ++a)
      parameters[a] = std::min(std::max(parameters[a], PPO_LOG_STD_MIN), PPO_LOG_STD_MAX);
  }
}

}  // extern "C"
