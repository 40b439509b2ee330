// The entry points of libobjc and libBlocksRuntime that objc2 and block2 call.
#include "objc.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

// Classes that objc2's crates refer to by symbol, not by name.
#define CLASSES_BY_SYMBOL(X)                                                                                           \
  X(NSString) X(NSArray) X(NSURL) X(MTLResidencySetDescriptor) X(MTLFunctionConstantValues) X(MTLCompileOptions)         \
  X(MTLBinaryArchiveDescriptor) X(MTLComputePipelineDescriptor)
#define X(NAME)                                                                                                        \
  extern "C" {                                                                                                         \
  __attribute__((visibility("default"), init_priority(101))) Class _OBJC_CLASS_##NAME;                                 \
  }
CLASSES_BY_SYMBOL(X)
#undef X

namespace {
std::recursive_mutex lock;
// Never destroyed: the program may send messages while it exits.
std::map<std::string, Class *> &classes() {
  static auto *all = new std::map<std::string, Class *>;
  return *all;
}
Class *storage_of(const char *name) {
#define X(NAME)                                                                                                        \
  if (!strcmp(name, #NAME))                                                                                            \
    return &_OBJC_CLASS_##NAME;
  CLASSES_BY_SYMBOL(X)
#undef X
  return new Class();
}

constexpr int BLOCK_REFERENCE = 2, BLOCK_REFERENCES = 0xffff, BLOCK_NEEDS_FREE = 1 << 24, BLOCK_HAS_HELPERS = 1 << 25;
} // namespace

void die(const std::string &message) {
  fprintf(stderr, "metal-sim: %s\n", message.c_str());
  abort();
}

Selector selector(const char *name) {
  static auto *all = new std::set<std::string>;
  std::lock_guard<std::recursive_mutex> guard(lock);
  return all->insert(name).first->c_str();
}

Class *class_named(const char *name) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  Class *&found = classes()[name];
  if (!found) {
    found = storage_of(name);
    found->name = strdup(name);
    found->isa = new Class{nullptr, found->name, {}};
  }
  return found;
}

EXPORT Class *objc_getClass(const char *name) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto found = classes().find(name);
  return found == classes().end() ? nullptr : found->second;
}
EXPORT Selector sel_registerName(const char *name) { return selector(name); }
EXPORT bool sel_isEqual(Selector a, Selector b) { return a == b; }
EXPORT const char *sel_getName(Selector s) { return s; }
EXPORT Class *object_getClass(Object *o) { return o ? o->isa : nullptr; }
EXPORT const char *class_getName(Class *c) { return c->name; }
EXPORT bool class_isMetaClass(Class *c) { return c->isa == nullptr; }
// objc2 calls these only to verify type encodings, which its feature
// `disable-encoding-assertions` turns off.
EXPORT void *class_getInstanceMethod(Class *, Selector) { return nullptr; }
EXPORT const char *method_getTypeEncoding(void *) { return ""; }
EXPORT Selector method_getName(void *) { return ""; }

EXPORT Object *objc_retain(Object *o) {
  if (o)
    o->references++;
  return o;
}
EXPORT void objc_release(Object *o) {
  if (o && --o->references == 0)
    o->destroy(o);
}
// The autorelease pools of a thread share one stack of objects; a pool is the stack's height when
// it was pushed. Objects autoreleased outside of any pool are never freed, as on a Mac. The stack
// is never destroyed, because a thread may send messages while it ends.
static std::vector<Object *> &autoreleased() {
  thread_local auto *all = new std::vector<Object *>;
  return *all;
}
EXPORT Object *objc_autorelease(Object *o) {
  autoreleased().push_back(o);
  return o;
}
EXPORT void *objc_autoreleasePoolPush() { return (void *)(autoreleased().size() + 1); }
EXPORT void objc_autoreleasePoolPop(void *pool) {
  while (autoreleased().size() >= size_t(pool)) {
    Object *o = autoreleased().back();
    autoreleased().pop_back();
    objc_release(o);
  }
}
// As between an optimised caller and callee: a returned object never enters a pool, the caller gets
// its reference. Methods here return an owned reference, so there is nothing to retain.
EXPORT Object *objc_retainAutoreleasedReturnValue(Object *o) { return o; }

EXPORT Method objc_msg_lookup(Object *receiver, Selector name) {
  Class *c = receiver->isa;
  auto found = c->methods.find(name);
  if (found == c->methods.end())
    die(std::string(c->isa ? "-[" : "+[") + c->name + " " + name + "] is not implemented");
  return found->second;
}
struct objc_super {
  Object *receiver;
  Class *super_class;
};
EXPORT Method objc_msg_lookup_super(objc_super *s, Selector name) { return objc_msg_lookup(s->receiver, name); }

EXPORT void *_NSConcreteGlobalBlock[32] = {};
EXPORT void *_NSConcreteStackBlock[32] = {};
EXPORT void *_NSConcreteMallocBlock[32] = {};
EXPORT Block *_Block_copy(Block *block) {
  if (block->isa == _NSConcreteGlobalBlock)
    return block;
  if (block->isa == _NSConcreteMallocBlock) {
    block->flags += BLOCK_REFERENCE;
    return block;
  }
  size_t size = block->descriptor->size;
  Block *copy = (Block *)memcpy(malloc(size), (void *)block, size);
  copy->isa = _NSConcreteMallocBlock;
  copy->flags = (copy->flags & ~BLOCK_REFERENCES) | BLOCK_NEEDS_FREE | BLOCK_REFERENCE;
  if (copy->flags & BLOCK_HAS_HELPERS)
    copy->descriptor->copy(copy, block);
  return copy;
}
EXPORT void _Block_release(Block *block) {
  if (!block || block->isa != _NSConcreteMallocBlock)
    return;
  block->flags -= BLOCK_REFERENCE;
  if ((block->flags & BLOCK_REFERENCES) >= BLOCK_REFERENCE)
    return;
  if (block->flags & BLOCK_HAS_HELPERS)
    block->descriptor->dispose(block);
  free(block);
}
EXPORT void _Block_object_assign(void *, const void *, int) {}
EXPORT void _Block_object_dispose(const void *, int) {}
