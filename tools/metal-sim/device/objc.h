// A minimal Objective-C runtime: objects, classes, selectors. Enough for objc2 in its GNUstep mode.
#pragma once
#include <atomic>
#include <string>
#include <unordered_map>

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef const char *Selector; // interned: equal selectors are the same pointer
typedef void (*Method)();

// `isa` comes first in both, since a message may go to an object or to a class. `methods` are the
// methods of instances. The methods of the class itself are in its metaclass, `isa`, which has no
// metaclass.
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

// Prints the message and aborts. For calls that no correct program makes.
[[noreturn]] void die(const std::string &message);

// Clang's blocks, used as completion handlers of command buffers and as deallocators.
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
