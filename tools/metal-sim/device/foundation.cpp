// NSString, NSArray, NSError, NSURL.
#include "metal.h"

Array::~Array() {
  for (Object *item : items)
    objc_release(item);
}

String *make_string(const std::string &text) {
  String *s = make<String>("NSString");
  s->text = text;
  return s;
}

Object *make_error(const std::string &message) {
  String *e = make<String>("NSError");
  e->text = message;
  return e;
}

void set_error(Object **error, const std::string &message) {
  if (error)
    *error = objc_autorelease(make_error(message)); // the caller retains what it finds there
}

static Array *fill_array(Array *array, Object **items, size_t count) {
  for (size_t i = 0; i < count; i++)
    array->items.push_back(retain(items[i]));
  return array;
}

void register_foundation() {
  for (const char *name : {"NSString", "NSArray", "NSError", "NSURL", "NSObject", "NSDictionary"}) {
    on_instance(name, "retain", [](Object *o, Selector) -> Object * { return o; });
    on_instance(name, "release", ignore);
  }

  const char *string = "NSString";
  on_class(string, "alloc", [](Object *, Selector) -> Object * { return make_string(""); });
  on_instance(string, "initWithBytes:length:encoding:",
              [](String *s, Selector, const char *bytes, size_t length, size_t) -> Object * {
                s->text.assign(bytes, length);
                return s;
              });
  on_instance(string, "UTF8String", [](String *s, Selector) -> const char * { return s->text.c_str(); });
  on_instance(string,
              "lengthOfBytesUsingEncoding:", [](String *s, Selector, size_t) -> size_t { return s->text.size(); });
  on_instance(string, "length", [](String *s, Selector) -> size_t { return s->text.size(); });

  const char *error = "NSError";
  on_instance(error, "localizedDescription", [](String *e, Selector) -> Object * { return make_string(e->text); });
  on_instance(error, "description", [](String *e, Selector) -> Object * { return make_string(e->text); });
  on_instance(error, "code", [](String *, Selector) -> long { return 1; });

  const char *url = "NSURL"; // of files only: its text is the path
  on_class(url, "fileURLWithPath:", [](Object *, Selector, String *path) -> Object * {
    String *u = make<String>("NSURL");
    u->text = path->text;
    return u;
  });
  on_instance(url, "path", [](String *u, Selector) -> Object * { return make_string(u->text); });

  const char *array = "NSArray";
  on_class(array, "alloc", [](Object *, Selector) -> Object * { return make<Array>("NSArray"); });
  on_class(array, "arrayWithObjects:count:", [](Object *, Selector, Object **items, size_t count) -> Object * {
    return fill_array(make<Array>("NSArray"), items, count);
  });
  on_instance(array, "initWithObjects:count:", [](Array *a, Selector, Object **items, size_t count) -> Object * {
    return fill_array(a, items, count);
  });
  on_instance(array, "count", [](Array *a, Selector) -> size_t { return a->items.size(); });
  on_instance(array, "objectAtIndex:", [](Array *a, Selector, size_t i) -> Object * { return retain(a->items.at(i)); });
  on_instance(array, "getObjects:", [](Array *a, Selector, Object **items) {
    for (Object *item : a->items)
      *items++ = item;
  });
  on_instance(array, "getObjects:range:", [](Array *a, Selector, Object **items, NSRange range) {
    for (size_t i = 0; i < range.length; i++)
      items[i] = a->items.at(range.location + i);
  });
}
