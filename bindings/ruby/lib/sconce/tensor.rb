# frozen_string_literal: true

module Sconce
  # A dense array of numbers on a device. Tensors never change; every operation makes a new one.
  class Tensor
    include Enumerable

    class << self
      # Values of one shape, flat or nested; f32 by default. `dtype`: :u8, :u32, :i64, :bf16, :f16, :f32, :f64.
      def new(values, dtype = nil, device: nil)
        raise TypeError, "an Array of numbers is expected, not #{values.class}" unless values.is_a?(Array)

        dims = shape_of(values)
        array = Native::Array.from_values(values.flatten, dims, DType.from(dtype || :f32).to_s, on(device))
        wrap(array)
      end

      %w[zeros ones rand randn].each do |kind|
        define_method(kind) { |shape, device: nil| wrap(Native::Array.create(kind, Array(shape), on(device))) }
      end

      # A tensor of an array of the native module.
      def wrap(array) = allocate.tap { |tensor| tensor.instance_variable_set(:@array, array) }

      private

      def on(device) = device.nil? ? "cpu" : Device.from(device).name

      def shape_of(values)
        return [values.size] unless values.any? { |value| value.is_a?(Array) }

        inner = values.map { |value| shape_of(Array(value)) }.uniq
        raise ArgumentError, "rows of different lengths are no tensor" if inner.size > 1 || values.flatten(1).size != values.sum { |v| Array(v).size }

        [values.size, *inner.first]
      end
    end

    attr_reader :array
    protected :array

    # The elements in row-major order.
    def values = @array.values
    # The same, rounded to f32.
    def values_f32 = values.pack("e*").unpack("e*")
    def shape = @array.dims
    def stride = @array.strides
    def rank = shape.size
    def elem_count = shape.inject(1, :*)
    def dtype = DType.new(@array.dtype)
    def device = Device.new(@array.device)

    # The only element.
    def item
      raise Error, "item takes a tensor with one element, and the shape is #{shape}" unless elem_count == 1

      values.first
    end

    def to_f = item.to_f
    def to_i = item.to_i

    # Each number of a tensor with one axis; otherwise each entry of the first axis, a tensor.
    def each(&block)
      return enum_for(:each) { shape.first || 0 } unless block

      rank < 2 ? values.each(&block) : shape.first.times { |i| block.call(get(i)) }
      self
    end

    %w[sin cos log sqr sqrt recip exp].each do |name|
      define_method(name) { wrap(@array.unary(name, 0.0)) }
    end

    def powf(power) = wrap(@array.unary("powf", Float(power)))

    { "+" => "add", "-" => "sub", "*" => "mul", "/" => "div" }.each do |operator, name|
      define_method(operator) do |other|
        case other
        when Tensor then wrap(@array.binary(name, other.array))
        when Numeric then wrap(@array.scalar(name, other.to_f))
        else raise TypeError, "a Tensor or a number is expected, not #{other.class}"
        end
      end
      define_method("broadcast_#{name}") { |other| wrap(@array.broadcast(name, native(other))) }
    end

    def matmul(other) = wrap(@array.matmul(native(other)))
    # `a` where this tensor of integers is not 0, else `b`.
    def where_cond(a, b) = wrap(@array.where_cond(native(a), native(b)))
    def index_select(indices, dim) = wrap(@array.index_select(native(indices), axis(dim)))

    def sum(dim) = wrap(@array.reduce("sum", axis(dim || 0), false))
    def mean(dim) = wrap(@array.reduce("mean", axis(dim || 0), false))
    def sum_all = wrap(@array.reduce_all("sum"))
    def mean_all = wrap(@array.reduce_all("mean"))

    %w[max min argmax argmin].each do |name|
      define_method("#{name}_keepdim") { |dim| wrap(@array.reduce(name, axis(dim), true)) }
    end

    def reshape(shape) = view("reshape", *Array(shape))
    def broadcast_as(shape) = view("broadcast_as", *Array(shape))
    def broadcast_left(shape) = view("broadcast_left", *Array(shape))
    def squeeze(dim) = view("squeeze", axis(dim))
    def unsqueeze(dim) = view("unsqueeze", dim.negative? ? dim + rank + 1 : dim)
    def get(index) = view("get", index.negative? ? index + (shape.first || 0) : index)
    alias [] get
    def transpose(a, b) = view("transpose", axis(a), axis(b))
    def t = view("t")
    def narrow(dim, start, length) = view("narrow", axis(dim), start, length)
    def flatten_from(dim) = view("flatten_from", axis(dim))
    def flatten_to(dim) = view("flatten_to", axis(dim))
    def flatten_all = view("flatten_all")
    def contiguous = view("contiguous")
    def copy = view("copy")
    # There are no gradients, so this is the tensor itself.
    def detach = self
    def is_contiguous = @array.contiguous?
    def is_fortran_contiguous = @array.fortran_contiguous?
    def to_dtype(dtype) = wrap(@array.to_dtype(DType.from(dtype).to_s))
    def to_device(device) = wrap(@array.to_device(Device.from(device).name))

    def to_s = inspect

    def inspect
      shown = elem_count <= 16 ? " #{values.inspect}" : ""
      "#<Sconce::Tensor shape=#{shape.inspect} dtype=#{dtype} device=#{device}#{shown}>"
    end

    private

    def wrap(array) = Tensor.wrap(array)
    def view(name, *numbers) = wrap(@array.shape(name, numbers))

    def native(tensor)
      raise TypeError, "a Tensor is expected, not #{tensor.class}" unless tensor.is_a?(Tensor)

      tensor.array
    end

    # Negative axes count from the last.
    def axis(dim)
      raise TypeError, "an axis is an Integer, not #{dim.class}" unless dim.is_a?(Integer)

      found = dim.negative? ? dim + rank : dim
      raise Error, "there is no axis #{dim} in the shape #{shape}" if found.negative?

      found
    end
  end
end
