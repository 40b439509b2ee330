// The least of an Objective-C runtime: objects, classes, selectors. Enough for objc2 in its GNUstep mode.
#pragma once
#include <atomic>
#include <string>
#include <unordered_map>

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef const char *Selector; // interned: equal selectors are the same pointer
typedef void (*Method)();

// `isa` comes first in both, since a message may go to either. A class's methods are those of its instances; what the
// class itself answers is in its own class, `isa`, which has none.
struct Class {
  Class *isa;
  const char *name;
  std::unordered_map<Selector, Method> methods;
};
struct Object {
  Class *isa;
  std::atomic<long> references{1};
  void (*destroy)(Object *);
};

Selector selector(const char *name);
Class *class_named(const char *name);

EXPORT Object *objc_retain(Object *);
EXPORT void objc_release(Object *);
EXPORT Object *objc_autorelease(Object *);
template <class T> T *retain(T *object) {
  objc_retain(object);
  return object;
}

template <class F> void on_instance(const char *class_name, const char *name, F method) {
  class_named(class_name)->methods[selector(name)] = (Method)(void *)+method;
}
template <class F> void on_class(const char *class_name, const char *name, F method) {
  class_named(class_name)->isa->methods[selector(name)] = (Method)(void *)+method;
}
// A method that does nothing and returns nothing.
inline void ignore(Object *, Selector) {}

// A new object with one reference.
template <class T> T *make(const char *class_name) {
  T *object = new T();
  object->isa = class_named(class_name);
  object->destroy = [](Object *o) { delete static_cast<T *>(o); };
  return object;
}
struct Plain : Object {}; // an object without contents

// A call that no correct program makes: says so and stops.
[[noreturn]] void die(const std::string &message);

// Clang's blocks, as the completion handlers of command buffers.
struct BlockDescriptor {
  size_t reserved, size;
  void (*copy)(void *, const void *);
  void (*dispose)(const void *);
};
struct Block {
  void *isa;
  int flags, reserved;
  void (*invoke)(Block *, Object *);
  BlockDescriptor *descriptor;
};
EXPORT Block *_Block_copy(Block *);
EXPORT void _Block_release(Block *);
