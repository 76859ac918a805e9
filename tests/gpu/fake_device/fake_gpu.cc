// A GPU for TensorFlow whose memory is the host's and whose kernels are TensorFlow's CPU kernels.
//
// TensorFlow loads this library from a folder `tensorflow-plugins` on Python's path. The library
// registers a pluggable device of type "GPU". For each kernel that the CUDA build registers for a
// GPU, it registers a kernel of higher priority with the same signature. So TensorFlow places an
// operation on the fake GPU if and only if it would place the operation on a real one, and host
// arguments are the same.
//
// A stream is a thread with a queue, because a GPU runs asynchronously. A kernel computes its result
// when it is launched, and then keeps the stream busy for the time that FAKE_GPU_BUSY gives.
//
// The device shows placement, copies, prefetching, collectives and timing with known times. It has
// no XLA, no NCCL and no cuDNN, and no float16 units; it says nothing about speed or rounding.
//
//   FAKE_GPUS            number of devices, 1 by default
//   FAKE_GPU_MEMORY_MB   memory of a device, 4096 by default
//   FAKE_GPU_BUSY        milliseconds for each operation, as in "Conv2D=2,MatMul=0.5"
//   FAKE_GPU_TRACE       file to which lines of a trace are appended, with times in microseconds
//
// A line has the time, its kind, the number of the device, and the bytes or the operation. Kinds are
// `h2d`, `d2h` and `d2d` for copies, `run` for the launch of an operation, and `end` for the end of an
// operation that FAKE_GPU_BUSY names.

#include <condition_variable>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

std::string Setting(const char* name, const char* otherwise) {
  const char* found = std::getenv(name);
  return found != nullptr && *found ? found : otherwise;
}

void Trace(const char* kind, int device, const std::string& what) {
  static std::mutex mu;
  static const std::string path = Setting("FAKE_GPU_TRACE", "");
  if (path.empty()) return;
  std::lock_guard<std::mutex> lock(mu);
  static std::ofstream file(path, std::ios::app);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  file << std::chrono::duration_cast<std::chrono::microseconds>(now).count() << ' ' << kind << ' '
       << device << ' ' << what << std::endl;
}

// ---- Streams and events ----------------------------------------------------------------------

class Event {
 public:
  uint64_t Record() {
    std::lock_guard<std::mutex> lock(mu_);
    return ++recorded_;
  }
  void Complete(uint64_t number) {
    std::lock_guard<std::mutex> lock(mu_);
    completed_ = std::max(completed_, number);
    changed_.notify_all();
  }
  uint64_t recorded() {
    std::lock_guard<std::mutex> lock(mu_);
    return recorded_;
  }
  bool IsComplete() {
    std::lock_guard<std::mutex> lock(mu_);
    return completed_ >= recorded_;
  }
  void Wait(uint64_t number) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return completed_ >= number; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0, completed_ = 0;
};

class Stream {
 public:
  Stream() : thread_([this] { Run(); }) {}
  ~Stream() {
    Enqueue(nullptr);
    thread_.join();
  }
  void Enqueue(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mu_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }
  void RecordEvent(std::shared_ptr<Event> event) {
    const uint64_t number = event->Record();
    Enqueue([event, number] { event->Complete(number); });
  }
  void WaitFor(std::shared_ptr<Event> event) {
    const uint64_t number = event->recorded();
    Enqueue([event, number] { event->Wait(number); });
  }
  void Synchronize() {
    auto event = std::make_shared<Event>();
    RecordEvent(event);
    event->Wait(1);
  }

 private:
  void Run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mu_);
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (!task) return;
      task();
    }
  }
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

}  // namespace

// The names are TensorFlow's.
struct SP_Stream_st : Stream {};
struct SP_Event_st {
  std::shared_ptr<Event> event = std::make_shared<Event>();
};

// ---- The device ------------------------------------------------------------------------------

namespace {

int64_t MemoryBytes() { return std::stoll(Setting("FAKE_GPU_MEMORY_MB", "4096")) << 20; }

void* Allocate(uint64_t size) { return std::aligned_alloc(256, (size + 255) / 256 * 256); }

void Copy(const SP_Device* device, SP_Stream stream, const char* kind, void* to, const void* from,
          uint64_t size) {
  Trace(kind, device->ordinal, std::to_string(size));
  if (stream == nullptr) {
    std::memcpy(to, from, size);
  } else {
    stream->Enqueue([=] { std::memcpy(to, from, size); });
  }
}

template <typename T>
void Fill(SP_Stream stream, void* to, T pattern, uint64_t size) {
  stream->Enqueue([=] {
    for (uint64_t i = 0; i < size / sizeof(T); ++i) static_cast<T*>(to)[i] = pattern;
  });
}

void CreateStreamExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*) {
  SP_StreamExecutor* se = params->stream_executor;
  *se = {SP_STREAMEXECUTOR_STRUCT_SIZE};
  se->allocate = [](const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* mem) {
    mem->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
    mem->opaque = Allocate(size);
    mem->size = size;
  };
  se->deallocate = [](const SP_Device*, SP_DeviceMemoryBase* mem) { std::free(mem->opaque); };
  se->host_memory_allocate = [](const SP_Device*, uint64_t size) { return Allocate(size); };
  se->host_memory_deallocate = [](const SP_Device*, void* mem) { std::free(mem); };
  se->unified_memory_allocate = [](const SP_Device*, uint64_t size) { return Allocate(size); };
  se->unified_memory_deallocate = [](const SP_Device*, void* mem) { std::free(mem); };
  se->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return false; };
  se->device_memory_usage = [](const SP_Device*, int64_t* free, int64_t* total) -> TF_Bool {
    *free = *total = MemoryBytes();
    return true;
  };
  se->create_stream = [](const SP_Device*, SP_Stream* stream, TF_Status*) {
    *stream = new SP_Stream_st;
  };
  se->destroy_stream = [](const SP_Device*, SP_Stream stream) { delete stream; };
  se->create_stream_dependency = [](const SP_Device*, SP_Stream dependent, SP_Stream other,
                                    TF_Status*) {
    auto event = std::make_shared<Event>();
    other->RecordEvent(event);
    dependent->WaitFor(event);
  };
  se->get_stream_status = [](const SP_Device*, SP_Stream, TF_Status*) {};
  se->create_event = [](const SP_Device*, SP_Event* event, TF_Status*) {
    *event = new SP_Event_st;
  };
  se->destroy_event = [](const SP_Device*, SP_Event event) { delete event; };
  se->get_event_status = [](const SP_Device*, SP_Event event) {
    return event->event->IsComplete() ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
  };
  se->record_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
    stream->RecordEvent(event->event);
  };
  se->wait_for_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
    stream->WaitFor(event->event);
  };
  se->create_timer = [](const SP_Device*, SP_Timer*, TF_Status*) {};
  se->destroy_timer = [](const SP_Device*, SP_Timer) {};
  se->start_timer = se->stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  se->memcpy_dtoh = [](const SP_Device* device, SP_Stream stream, void* to,
                       const SP_DeviceMemoryBase* from, uint64_t size, TF_Status*) {
    Copy(device, stream, "d2h", to, from->opaque, size);
  };
  se->memcpy_htod = [](const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
                       const void* from, uint64_t size, TF_Status*) {
    Copy(device, stream, "h2d", to->opaque, from, size);
  };
  se->memcpy_dtod = [](const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
                       const SP_DeviceMemoryBase* from, uint64_t size, TF_Status*) {
    Copy(device, stream, "d2d", to->opaque, from->opaque, size);
  };
  se->sync_memcpy_dtoh = [](const SP_Device* device, void* to, const SP_DeviceMemoryBase* from,
                            uint64_t size, TF_Status*) {
    Copy(device, nullptr, "d2h", to, from->opaque, size);
  };
  se->sync_memcpy_htod = [](const SP_Device* device, SP_DeviceMemoryBase* to, const void* from,
                            uint64_t size, TF_Status*) {
    Copy(device, nullptr, "h2d", to->opaque, from, size);
  };
  se->sync_memcpy_dtod = [](const SP_Device* device, SP_DeviceMemoryBase* to,
                            const SP_DeviceMemoryBase* from, uint64_t size, TF_Status*) {
    Copy(device, nullptr, "d2d", to->opaque, from->opaque, size);
  };
  se->block_host_for_event = [](const SP_Device*, SP_Event event, TF_Status*) {
    event->event->Wait(event->event->recorded());
  };
  se->block_host_until_done = [](const SP_Device*, SP_Stream stream, TF_Status*) {
    stream->Synchronize();
  };
  se->synchronize_all_activity = [](const SP_Device*, TF_Status*) {};
  se->mem_zero = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, uint64_t size,
                    TF_Status*) { Fill<uint8_t>(stream, to->opaque, 0, size); };
  se->memset = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, uint8_t pattern,
                  uint64_t size, TF_Status*) { Fill(stream, to->opaque, pattern, size); };
  se->memset32 = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, uint32_t pattern,
                    uint64_t size, TF_Status*) { Fill(stream, to->opaque, pattern, size); };
  se->host_callback = [](const SP_Device*, SP_Stream stream, SE_StatusCallbackFn callback,
                         void* argument) -> TF_Bool {
    stream->Enqueue([=] {
      TF_Status* status = TF_NewStatus();
      callback(argument, status);
      TF_DeleteStatus(status);
    });
    return true;
  };
}

// ---- The kernels -----------------------------------------------------------------------------

using tensorflow::AsyncOpKernel;
using tensorflow::KernelDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

double BusyMs(const std::string& op) {
  static const auto* busy = [] {
    auto* found = new std::map<std::string, double>;
    std::istringstream settings(Setting("FAKE_GPU_BUSY", ""));
    for (std::string one; std::getline(settings, one, ',');) {
      const size_t at = one.find('=');
      (*found)[one.substr(0, at)] = std::stod(one.substr(at + 1));
    }
    return found;
  }();
  const auto it = busy->find(op);
  return it == busy->end() ? 0 : it->second;
}

// The number at the end of a name like "/job:localhost/replica:0/task:0/device:GPU:1".
int DeviceOf(OpKernelContext* context) {
  const std::string& name = context->device()->name();
  return std::stoi(name.substr(name.rfind(':') + 1));
}

// Keeps the stream of the kernel's device busy, after the kernel has computed its result.
void StayBusy(OpKernelContext* context, const std::string& op, double ms) {
  if (ms <= 0) return;
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status);
  if (TF_GetCode(status) == TF_OK && stream != nullptr) {
    const int device = DeviceOf(context);
    stream->Enqueue([=] {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
      Trace("end", device, op);
    });
  }
  TF_DeleteStatus(status);
}

class FakeKernel : public OpKernel {
 public:
  FakeKernel(OpKernelConstruction* construction, std::unique_ptr<OpKernel> of_cpu)
      : OpKernel(construction), of_cpu_(std::move(of_cpu)), ms_(BusyMs(type_string())) {}
  void Compute(OpKernelContext* context) override {
    Trace("run", DeviceOf(context), type_string());
    of_cpu_->Compute(context);
    StayBusy(context, type_string(), ms_);
  }
  bool IsExpensive() override { return of_cpu_->IsExpensive(); }

 private:
  std::unique_ptr<OpKernel> of_cpu_;
  double ms_;
};

class FakeAsyncKernel : public AsyncOpKernel {
 public:
  FakeAsyncKernel(OpKernelConstruction* construction, std::unique_ptr<OpKernel> of_cpu)
      : AsyncOpKernel(construction), of_cpu_(std::move(of_cpu)) {}
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Trace("run", DeviceOf(context), type_string());
    of_cpu_->AsAsync()->ComputeAsync(context, std::move(done));
  }

 private:
  std::unique_ptr<OpKernel> of_cpu_;
};

class FakeFactory : public tensorflow::kernel_factory::OpKernelFactory {
 public:
  OpKernel* Create(OpKernelConstruction* construction) override {
    tensorflow::NodeDef node = construction->def();
    // There is no NCCL.
    const auto hint = node.mutable_attr()->find("communication_hint");
    if (hint != node.mutable_attr()->end()) hint->second.set_s("ring");
    std::shared_ptr<const tensorflow::NodeProperties> properties;
    absl::Status status = tensorflow::NodeProperties::CreateFromNodeDef(
        node, tensorflow::OpRegistry::Global(), &properties);
    OpKernel* of_cpu = nullptr;
    if (status.ok()) {
      auto* device = static_cast<tensorflow::DeviceBase*>(construction->device());
      status = tensorflow::CreateOpKernel(
          tensorflow::DeviceType(tensorflow::DEVICE_CPU), device,
          device->GetAllocator(tensorflow::AllocatorAttributes()), construction->function_library(),
          construction->resource_manager(), properties, construction->graph_def_version(), &of_cpu);
    }
    if (!status.ok()) {
      construction->SetStatus(status);
      return nullptr;
    }
    std::unique_ptr<OpKernel> owned(of_cpu);
    if (of_cpu->AsAsync() != nullptr) return new FakeAsyncKernel(construction, std::move(owned));
    return new FakeKernel(construction, std::move(owned));
  }
};

void Register(const KernelDef& like) {
  auto* def = new KernelDef(like);  // the registrar takes it
  def->set_device_type("GPU");
  def->set_priority(like.priority() + 1);
  tensorflow::kernel_factory::OpKernelRegistrar(def, "FakeKernel",
                                                std::make_unique<FakeFactory>());
}

}  // namespace

extern "C" {

void TF_InitKernel() {
  const tensorflow::KernelList registered = tensorflow::GetAllRegisteredKernels();
  for (const KernelDef& def : registered.kernel()) {
    // Collectives have one kernel for all devices, which would choose NCCL.
    const bool is_collective = def.op().rfind("Collective", 0) == 0;
    if (def.device_type() == "GPU" || (def.device_type() == "DEFAULT" && is_collective)) {
      Register(def);
    }
  }
}

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  *params->platform = {SP_PLATFORM_STRUCT_SIZE};
  params->platform->name = "FAKE_GPU";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = true;
  params->platform->force_memory_growth = true;
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  SP_PlatformFns* fns = params->platform_fns;
  fns->get_device_count = [](const SP_Platform*, int* count, TF_Status*) {
    // An empty list hides the fake GPUs, as it hides real ones.
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    const bool hidden = visible != nullptr && (!*visible || *visible == '-');
    *count = hidden ? 0 : std::stoi(Setting("FAKE_GPUS", "1"));
  };
  fns->create_device = [](const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*) {
    *params->device = {SP_DEVICE_STRUCT_SIZE};
    params->device->ordinal = params->ordinal;
    params->device->hardware_name = "fake GPU";
  };
  fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status*) {
    *params->device_fns = {SP_DEVICE_FNS_STRUCT_SIZE};
  };
  fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns->create_stream_executor = CreateStreamExecutor;
  fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns->create_timer_fns = [](const SP_Platform*, SP_TimerFns* fns, TF_Status*) {
    *fns = {SP_TIMER_FNS_STRUCT_SIZE};
    fns->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
  };
  fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}
}
