// The host op's implementation: see host_op.h for the contract and src/host_op.rs for the other side.
//
// Facts of MLX 0.32 that shape this file:
// - eval_cpu runs on the thread that evaluates and only plans: it allocates outputs and dispatches a task to the
//   stream's own thread. After it, MLX keeps the buffers of inputs and outputs alive until the stream has passed that
//   task, so the task itself may hold weak copies; a strong one would stop later ops from taking the buffers over.
// - An exception thrown in the task is stored by the stream and thrown again by the evaluation that waits for it.
// - An input may be any view (transposed, broadcast, sliced at an offset). libmlx does not export its copy functions,
//   so views are packed here.
#include "host_op.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "mlx/stream.h"

namespace mx = mlx::core;

namespace {

// Owns the Rust closure. Constructed in place and never copied, or the closure would be dropped twice.
class Closure {
 public:
  explicit Closure(const sanctum_host_op& op) : op_(op) {}
  Closure(const Closure&) = delete;
  Closure& operator=(const Closure&) = delete;
  ~Closure() { op_.drop(op_.closure); }

  const char* name() const { return op_.name; }
  int in_place() const { return op_.in_place; }

  // Runs the closure; its failure, a panic included, becomes an exception with its message.
  void call(const std::vector<sanctum_tensor>& inputs, std::vector<sanctum_tensor>& outputs) const {
    std::string message;
    int status = op_.call(op_.closure, inputs.data(), inputs.size(), outputs.data(), outputs.size(), &message);
    if (status != 0) {
      throw std::runtime_error(std::string("host op ") + op_.name + ": " + message);
    }
  }

 private:
  sanctum_host_op op_;
};

// Writes the elements of a view to `target` in row-major order. The innermost axis is copied in one piece if it can be.
void pack(const mx::array& view, char* target) {
  const size_t item = view.itemsize();
  const int axes = static_cast<int>(view.ndim());
  const bool inner_is_dense = axes > 0 && view.strides(axes - 1) == 1;
  const size_t run = inner_is_dense ? view.shape(axes - 1) : 1;
  const int outer = inner_is_dense ? axes - 1 : axes;
  const size_t runs = run == 0 ? 0 : view.size() / run;

  const char* source = view.data<char>(); // already at the view's offset
  std::vector<int32_t> index(outer, 0);
  for (size_t i = 0; i < runs; i++) {
    int64_t start = 0;
    for (int axis = 0; axis < outer; axis++) {
      start += index[axis] * view.strides(axis);
    }
    std::memcpy(target + i * run * item, source + start * static_cast<int64_t>(item), run * item);
    for (int axis = outer - 1; axis >= 0 && ++index[axis] == view.shape(axis); axis--) {
      index[axis] = 0;
    }
  }
}

// Same as a plain memcpy for what is row-major already.
void copy_packed(const mx::array& from, char* target) {
  if (from.flags().row_contiguous) {
    std::memcpy(target, from.data<char>(), from.nbytes());
  } else {
    pack(from, target);
  }
}

sanctum_tensor describe(const mx::array& array, void* data) {
  return {
      data,
      array.shape().data(),
      static_cast<int32_t>(array.ndim()),
      static_cast<int32_t>(array.dtype().val()),
      array.nbytes()};
}

// What the stream's thread does for one evaluation of the op. Copyable, as std::function demands.
struct Task {
  std::shared_ptr<Closure> closure;
  std::vector<mx::array> inputs; // weak
  std::vector<mx::array> outputs; // weak
  std::vector<mx::array> packed; // room for the inputs that are views, in order; weak, kept alive by the encoder
  bool copy_in_place; // output 0 has a buffer of its own that must receive the in-place input

  void operator()() {
    std::vector<sanctum_tensor> in, out;
    in.reserve(inputs.size());
    out.reserve(outputs.size());
    for (auto& array : outputs) {
      out.push_back(describe(array, array.data<char>()));
    }
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); i++) {
      auto& array = inputs[i];
      if (static_cast<int>(i) == closure->in_place()) {
        if (copy_in_place) {
          copy_packed(array, outputs[0].data<char>());
        }
        in.push_back(describe(array, nullptr));
      } else if (array.flags().row_contiguous) {
        in.push_back(describe(array, array.data<char>()));
      } else {
        auto& room = packed[next++];
        pack(array, room.data<char>());
        in.push_back(describe(room, room.data<char>()));
      }
    }
    closure->call(in, out);
  }
};

class HostOp : public mx::Primitive {
 public:
  HostOp(mx::Stream stream, std::shared_ptr<Closure> closure)
      : mx::Primitive(stream), closure_(std::move(closure)) {}

  const char* name() const override { return closure_->name(); }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string("host op ") + name() + " runs on the CPU only");
  }

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const int in_place = closure_->in_place();
    bool take_over = false;
    if (in_place >= 0) {
      // Donatable: this op is the only one that still refers to the array and to its buffer.
      const auto& input = inputs[in_place];
      take_over = input.is_donatable() && input.flags().row_contiguous && input.data_size() == input.size();
    }
    for (size_t i = 0; i < outputs.size(); i++) {
      if (i == 0 && take_over) {
        outputs[0].copy_shared_buffer(inputs[in_place]);
      } else {
        outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
      }
    }

    auto& encoder = mx::cpu::get_command_encoder(stream());
    Task task{closure_, {}, {}, {}, in_place >= 0 && !take_over};
    task.inputs.reserve(inputs.size());
    task.outputs.reserve(outputs.size());
    for (size_t i = 0; i < inputs.size(); i++) {
      const auto& input = inputs[i];
      task.inputs.push_back(mx::array::unsafe_weak_copy(input));
      if (!input.flags().row_contiguous && static_cast<int>(i) != in_place) {
        mx::array room(mx::allocator::malloc(input.nbytes()), input.shape(), input.dtype());
        task.packed.push_back(mx::array::unsafe_weak_copy(room));
        encoder.add_temporary(std::move(room));
      }
    }
    for (const auto& output : outputs) {
      task.outputs.push_back(mx::array::unsafe_weak_copy(output));
    }
    encoder.dispatch(std::move(task));
  }

 private:
  std::shared_ptr<Closure> closure_;
};

// mlx_dtype and mlx::core::Dtype::Val number the types alike (checked by a test on the Rust side).
mx::Dtype dtype_of(int32_t code) {
  static const mx::Dtype all[] = {
      mx::bool_, mx::uint8, mx::uint16, mx::uint32, mx::uint64, mx::int8, mx::int16,
      mx::int32, mx::int64, mx::float16, mx::float32, mx::float64, mx::bfloat16, mx::complex64};
  if (code < 0 || code >= static_cast<int32_t>(std::size(all))) {
    throw std::invalid_argument("unknown dtype " + std::to_string(code));
  }
  return all[code];
}

std::vector<mx::array> apply(
    const sanctum_host_op& op,
    std::shared_ptr<Closure> closure,
    const sanctum_array* inputs,
    size_t input_count,
    const sanctum_output* outputs,
    size_t output_count) {
  std::vector<mx::array> in;
  in.reserve(input_count);
  for (size_t i = 0; i < input_count; i++) {
    if (inputs[i].ctx == nullptr) {
      throw std::invalid_argument("an input is an empty array handle");
    }
    in.push_back(*static_cast<mx::array*>(inputs[i].ctx));
  }
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  shapes.reserve(output_count);
  dtypes.reserve(output_count);
  for (size_t i = 0; i < output_count; i++) {
    shapes.emplace_back(outputs[i].shape, outputs[i].shape + outputs[i].ndim);
    dtypes.push_back(dtype_of(outputs[i].dtype));
  }
  if (op.in_place >= 0) {
    const auto& input = in.at(op.in_place);
    if (output_count == 0 || input.shape() != shapes[0] || input.dtype() != dtypes[0]) {
      throw std::invalid_argument("the in-place input differs from output 0 in shape or type");
    }
  }
  auto stream = mx::default_stream(mx::Device::cpu);
  auto primitive = std::make_shared<HostOp>(stream, std::move(closure));
  return mx::array::make_arrays(std::move(shapes), dtypes, primitive, in);
}

} // namespace

extern "C" void sanctum_host_op_fail(void* failure, const char* message, size_t length) {
  static_cast<std::string*>(failure)->assign(message, length);
}

extern "C" int sanctum_host_op_apply(
    const sanctum_host_op* op,
    const sanctum_array* inputs,
    size_t input_count,
    const sanctum_output* outputs,
    size_t output_count,
    sanctum_array* results,
    char* error,
    size_t error_size) {
  try {
    auto closure = std::make_shared<Closure>(*op);
    auto arrays = apply(*op, std::move(closure), inputs, input_count, outputs, output_count);
    // Handles are filled only when all could be made.
    std::vector<std::unique_ptr<mx::array>> handles;
    for (auto& array : arrays) {
      handles.push_back(std::make_unique<mx::array>(std::move(array)));
    }
    for (size_t i = 0; i < handles.size(); i++) {
      results[i].ctx = handles[i].release();
    }
    return 0;
  } catch (const std::exception& failure) {
    std::snprintf(error, error_size, "%s", failure.what());
    return 1;
  }
}
