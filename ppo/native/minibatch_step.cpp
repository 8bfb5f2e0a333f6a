// The minibatch step of ppo/update.py for one pair of networks, whose sizes are constants here.
//
// It computes what `make_step` computes, in the same order of operations but for the order of
// sums; the Python function is the definition, and tests hold the two together. One call does
// any number of minibatches in a row, on one thread or with a thread for each network.
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
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
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

// --- the step: one half for each network, which meet in the norm of the gradient ---

// All rows to learn from, contiguous.
struct Batch {
  const float* observations;  // [M][D]
  const void* actions;        // [M][A], float or int64
  const float* log_probs;     // [M], and so are the others
  const float* values;
  const float* advantages;
  const float* returns;
};

// Those that make up one minibatch.
struct Minibatch {
  const Batch& batch;
  const std::int64_t* index;  // [rows], into the batch
  int rows;
};

struct Settings {
  float clip_range, ent_coef, vf_coef, max_grad_norm;
  float kl_limit;       // infinite where there is none
  float clip_range_vf;  // infinite where there is none
  std::int32_t normalize_advantages;
  std::int32_t policy_learns;  // if not, the actor's half measures and does not follow
};

// What a step changes.
struct Learner {
  float *parameters, *exp_avg, *exp_avg_sq, *step;  // [P]
  std::uint8_t* active;                             // []
};

// All that one half has to know of the other: its part of the loss, its diagnostics, and the
// sum of squares of its gradient.
struct Measured {
  float loss, entropy, kl, clipped, squares;
};

void normalize(float* advantages, int rows) {
  const double first = advantages[0];
  double mean = 0.0, squares = 0.0;
  for (int b = 0; b < rows; ++b) mean += advantages[b] - first;
  mean /= rows;
  for (int b = 0; b < rows; ++b) {
    const double centred = advantages[b] - first - mean;
    squares += centred * centred;
  }
  const double spread = std::sqrt(squares / std::max(rows - 1, 1)) + PPO_ADVANTAGE_EPSILON;
  for (int b = 0; b < rows; ++b)
    advantages[b] = static_cast<float>((advantages[b] - first - mean) / spread);
}

// A network, its parameters' place among all, and their gradient. Its functions are not inlined:
// the same instructions serve one thread and two, and the results are the same to the bit.
template <class Net, int Start, int Free>
struct Half {
  static constexpr int kStart = Start, kParameters = Free + Net::parameters();
  static constexpr int kRow = padded(kObservation);

  Net network;
  alignas(64) float observations[kMaxRows * kRow];
  alignas(64) float gradient[kParameters];

  // Outputs at the minibatch, [rows][padded].
  const float* forward(const float* parameters, const Minibatch& minibatch) {
    const float* rows = minibatch.batch.observations;
    for (int b = 0; b < minibatch.rows; ++b)
      std::copy_n(rows + minibatch.index[b] * kObservation, kObservation, observations + b * kRow);
    network.load(parameters + Start + Free);
    return network.forward(observations, minibatch.rows);
  }

  // The gradient by the parameters, whose sum of squares it returns.
  float backward(int rows) {
    network.backward(observations, rows, gradient + Free);
    float squares = 0.0f;
    for (int i = 0; i < kParameters; ++i) squares += gradient[i] * gradient[i];
    return squares;
  }

  // Adam, on the clipped gradient; `step` counts this one.
  [[gnu::noinline]] void follow(const Learner& learner, const float* learning_rates, float scale,
                                float step) {
    const float correction1 = static_cast<float>(1.0 - std::pow(PPO_BETA1, step));
    const float correction2 = static_cast<float>(1.0 - std::pow(PPO_BETA2, step));
    constexpr float new1 = static_cast<float>(1.0 - PPO_BETA1);
    constexpr float new2 = static_cast<float>(1.0 - PPO_BETA2);
    float* const parameters = learner.parameters + Start;
    float* const means = learner.exp_avg + Start;
    float* const squares = learner.exp_avg_sq + Start;
    for (int i = 0; i < kParameters; ++i) {
      const float clipped = gradient[i] * scale;
      means[i] += new1 * (clipped - means[i]);
      squares[i] += new2 * (clipped * clipped - squares[i]);
      const float deviation = std::sqrt(squares[i] / correction2) + PPO_ADAM_EPSILON;
      parameters[i] -= learning_rates[Start + i] * (means[i] / correction1) / deviation;
    }
    for (int a = 0; a < Free; ++a)
      parameters[a] = std::min(std::max(parameters[a], PPO_LOG_STD_MIN), PPO_LOG_STD_MAX);
  }
};

struct ActorHalf : Half<Actor, 0, Policy::kFree> {
  float advantages[kMaxRows];

  // The clipped objective with its entropy bonus, and its gradient.
  [[gnu::noinline]] Measured measure(const Learner& learner, const Minibatch& minibatch,
                                     const Settings& settings) {
    const auto& [batch, index, rows] = minibatch;
    const float* outputs = forward(learner.parameters, minibatch);
    for (int b = 0; b < rows; ++b) advantages[b] = batch.advantages[index[b]];
    if (settings.normalize_advantages) normalize(advantages, rows);
    Policy policy(learner.parameters);
    const auto* actions = static_cast<const Policy::Action*>(batch.actions);
    float* output_gradients = network.output_gradients();
    const float low = 1.0f - settings.clip_range, high = 1.0f + settings.clip_range;
    float loss = 0.0f, entropy = 0.0f, kl = 0.0f, clipped = 0.0f;
    for (int b = 0; b < rows; ++b) {
      const float* output = outputs + b * kOutputRow;
      const auto* action = actions + index[b] * Policy::kAction;
      const float logratio = policy.log_prob(output, action) - batch.log_probs[index[b]];
      const float ratio = std::exp(logratio);
      const float plain = ratio * advantages[b];
      const float bounded = std::min(std::max(ratio, low), high) * advantages[b];
      loss -= std::min(plain, bounded);
      entropy += policy.entropy(output);
      kl += std::expm1(logratio) - logratio;
      clipped += std::fabs(ratio - 1.0f) > settings.clip_range ? 1.0f : 0.0f;
      policy.differentiate(output, action, plain <= bounded ? -plain / rows : 0.0f,
                           -settings.ent_coef / rows, output_gradients + b * kOutputRow);
    }
    if constexpr (Policy::kFree > 0) std::copy_n(policy.log_std_gradient, Policy::kFree, gradient);
    return {loss / rows, entropy / rows, kl / rows, clipped / rows, backward(rows)};
  }
};

struct CriticHalf : Half<Critic, ActorHalf::kParameters, 0> {
  // The squared error of the values, and its gradient.
  [[gnu::noinline]] Measured measure(const Learner& learner, const Minibatch& minibatch,
                                     const Settings& settings) {
    constexpr int row = padded(1);
    const auto& [batch, index, rows] = minibatch;
    const float* values = forward(learner.parameters, minibatch);
    float* gradients = network.output_gradients();
    const float limit = settings.clip_range_vf;
    float loss = 0.0f;
    for (int b = 0; b < rows; ++b) {
      const float old = batch.values[index[b]], moved = values[b * row] - old;
      const bool inside = std::fabs(moved) <= limit;
      const float value =
          inside ? values[b * row] : old + std::min(std::max(moved, -limit), limit);
      const float error = value - batch.returns[index[b]];
      loss += error * error;
      gradients[b * row] = inside ? settings.vf_coef * 2.0f * error / rows : 0.0f;
    }
    return {loss / rows, 0.0f, 0.0f, 0.0f, backward(rows)};
  }
};

constexpr int kMetrics = 9;  // in the order of StepMetrics
constexpr int kParameters = ActorHalf::kParameters + CriticHalf::kParameters;

// One walk over the batch in an order, a minibatch at a time; the last may be shorter.
struct Walk {
  const Learner& learner;
  const Batch& batch;
  const std::int64_t* order;  // [rows]
  int rows, batch_size;
  const Settings& settings;
  const float* learning_rates;

  int count() const { return (rows + batch_size - 1) / batch_size; }
  Minibatch minibatch(int n) const {
    const int first = n * batch_size;
    return {batch, order + first, std::min(batch_size, rows - first)};
  }
};

// What is decided minibatch by minibatch; two threads come to the same verdicts.
class Verdicts {
 public:
  float scale = 0.0f;              // of the gradient that is to be followed
  float actor_step, critic_step;  // its number
  bool active;

  explicit Verdicts(const Learner& learner)
      : actor_step(learner.step[ActorHalf::kStart]),
        critic_step(learner.step[CriticHalf::kStart]),
        active(*learner.active) {}

  // Whether to follow the gradient; `metrics` may be null.
  [[gnu::noinline]] bool decide(const Measured& actor, const Measured& critic,
                                const Settings& settings, float* metrics) {
    const float loss =
        actor.loss - settings.ent_coef * actor.entropy + settings.vf_coef * critic.loss;
    const bool both = settings.policy_learns;
    const float norm = std::sqrt((both ? actor.squares : 0.0f) + critic.squares);
    const bool evaluated = active;
    active = evaluated && std::isfinite(loss) && std::isfinite(norm) &&
             (!both || actor.kl <= settings.kl_limit);
    scale = std::min(settings.max_grad_norm / (norm + 1e-6f), 1.0f);
    actor_step += active && both ? 1.0f : 0.0f;
    critic_step += active ? 1.0f : 0.0f;
    const float measured[kMetrics] = {
        actor.loss, critic.loss,   -actor.entropy, loss, actor.kl,
        actor.clipped, norm, evaluated ? 1.0f : 0.0f, active ? 1.0f : 0.0f};
    if (metrics) std::copy_n(measured, kMetrics, metrics);
    return active;
  }
};

// Where two threads meet, once a minibatch: each leaves what it measured and takes the other's.
// Neither can be more than one minibatch ahead, so that two places each are enough.
class Meeting {
  struct alignas(64) Side {
    std::atomic<int> left{0};
    Measured measured[2];
  };
  Side sides_[2];

 public:
  const Measured& exchange(int own, int minibatch, const Measured& measured) {
    Side &mine = sides_[own], &other = sides_[1 - own];
    mine.measured[minibatch % 2] = measured;
    mine.left.store(minibatch + 1, std::memory_order_release);
    // The halves take about as long; the other thread may have lost its core, though.
    constexpr int patience = 4096;
    for (int looked = 0; other.left.load(std::memory_order_acquire) <= minibatch; ++looked)
      if (looked > patience) std::this_thread::yield();
    return other.measured[minibatch % 2];
  }
};

struct Workspace {
  ActorHalf actor;
  CriticHalf critic;
};

void walk_alone(const Walk& walk, Workspace& work, Verdicts& verdicts, float* metrics) {
  for (int n = 0; n < walk.count(); ++n, metrics += kMetrics) {
    const Minibatch minibatch = walk.minibatch(n);
    const Measured actor = work.actor.measure(walk.learner, minibatch, walk.settings);
    const Measured critic = work.critic.measure(walk.learner, minibatch, walk.settings);
    if (!verdicts.decide(actor, critic, walk.settings, metrics)) continue;
    if (walk.settings.policy_learns)
      work.actor.follow(walk.learner, walk.learning_rates, verdicts.scale, verdicts.actor_step);
    work.critic.follow(walk.learner, walk.learning_rates, verdicts.scale, verdicts.critic_step);
  }
}

void walk_as_actor(const Walk& walk, ActorHalf& half, Verdicts& verdicts, Meeting& meeting,
                   float* metrics) {
  for (int n = 0; n < walk.count(); ++n, metrics += kMetrics) {
    const Measured actor = half.measure(walk.learner, walk.minibatch(n), walk.settings);
    const Measured& critic = meeting.exchange(0, n, actor);
    if (verdicts.decide(actor, critic, walk.settings, metrics) && walk.settings.policy_learns)
      half.follow(walk.learner, walk.learning_rates, verdicts.scale, verdicts.actor_step);
  }
}

void walk_as_critic(const Walk& walk, CriticHalf& half, Verdicts verdicts, Meeting& meeting) {
  for (int n = 0; n < walk.count(); ++n) {
    const Measured critic = half.measure(walk.learner, walk.minibatch(n), walk.settings);
    const Measured& actor = meeting.exchange(1, n, critic);
    if (verdicts.decide(actor, critic, walk.settings, nullptr))
      half.follow(walk.learner, walk.learning_rates, verdicts.scale, verdicts.critic_step);
  }
}

}  // namespace

extern "C" {

int parameter_count() { return kParameters; }

// Steps over a batch in the order given, on one thread or on two with the same results.
void run_minibatches(const Learner* learner, const Batch* batch, const std::int64_t* order,
                     int rows, int batch_size, const Settings* settings,
                     const float* learning_rates, float* metrics, int threads) {
  static thread_local std::unique_ptr<Workspace> kept(new Workspace());
  Workspace& work = *kept;
  const Walk walk{*learner, *batch, order, rows, batch_size, *settings, learning_rates};
  Verdicts verdicts(*learner);
  Meeting meeting;
  std::thread helper;
  if (threads > 1) {
    try {
      helper = std::thread(
          [&, start = verdicts] { walk_as_critic(walk, work.critic, start, meeting); });
    } catch (const std::system_error&) {  // no thread to be had: alone, then
    }
  }
  if (helper.joinable()) {
    walk_as_actor(walk, work.actor, verdicts, meeting, metrics);
    helper.join();
  } else {
    walk_alone(walk, work, verdicts, metrics);
  }
  std::fill_n(learner->step + ActorHalf::kStart, ActorHalf::kParameters, verdicts.actor_step);
  std::fill_n(learner->step + CriticHalf::kStart, CriticHalf::kParameters, verdicts.critic_step);
  *learner->active = verdicts.active;
}

}  // extern "C"
