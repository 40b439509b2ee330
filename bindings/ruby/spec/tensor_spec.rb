# frozen_string_literal: true

require_relative "spec_helper"

RSpec.describe Candle::Tensor do
  def tensor(...) = described_class.new(...)
  let(:x) { tensor([1, 2, 3, 4, 5, 6]).reshape([2, 3]) }

  it "is made of values, flat or nested" do
    expect(x.values).to eq([1, 2, 3, 4, 5, 6])
    expect([x.shape, x.stride, x.rank, x.elem_count]).to eq([[2, 3], [3, 1], 2, 6])
    expect(tensor([[1, 2], [3, 4]]).shape).to eq([2, 2])
    expect([x.dtype.to_s, x.device]).to eq(["f32", Candle::Device.cpu])
    expect(tensor([0.1]).values_f32).to eq(tensor([0.1]).values)
    expect(x.inspect).to include("[2, 3]", "f32", "cpu")
  end

  it "has zeros, ones and random numbers" do
    expect(described_class.zeros([2, 2]).values).to eq([0] * 4)
    expect(described_class.ones([3], device: "cpu").values).to eq([1] * 3)
    expect(described_class.rand([100]).values).to all(be_between(0, 1))
    expect(described_class.randn([10_000]).mean_all.item.abs).to be < 0.1
  end

  it "has every dtype" do
    Candle::DType::NAMES.each do |name|
      expect(tensor([1, 2], name.to_sym).dtype.to_s).to eq(name)
      expect(x.to_dtype(name).values).to eq([1, 2, 3, 4, 5, 6])
    end
    expect(x.dtype.inspect).to include("f32")
    expect(x.dtype).to eq(:f32)
    expect { tensor([1], :f8) }.to raise_error(ArgumentError, /unknown dtype/)
    expect { tensor([1.5], :i64) }.to raise_error(RuntimeError, /i64 can hold/)
  end

  it "gives single numbers" do
    expect(tensor([2.5]).item).to eq(2.5)
    expect([tensor([2.5]).to_f, tensor([2.5]).to_i]).to eq([2.5, 2])
    expect { x.item }.to raise_error(RuntimeError, /one element/)
  end

  it "is enumerable" do
    expect(x.map(&:shape)).to eq([[3], [3]])
    expect(tensor([3, 1, 2]).sort).to eq([1, 2, 3])
    expect(x.each.size).to eq(2)
  end

  it "computes functions of each element" do
    values = [0.5, 1.0, 2.0]
    functions = { sin: Math.method(:sin), cos: Math.method(:cos), log: Math.method(:log), sqrt: Math.method(:sqrt), exp: Math.method(:exp),
                  sqr: ->(v) { v * v }, recip: ->(v) { 1 / v } }
    functions.each { |name, formula| expect(tensor(values).public_send(name).values).to close_to(values.map(&formula), 1e-6) }
    expect(tensor(values).powf(2.5).values).to close_to(values.map { |v| v**2.5 }, 1e-5)
  end

  it "computes with tensors and numbers" do
    y = tensor([2, 4, 8])
    expect((tensor([1, 2, 3]) + y).values).to eq([3, 6, 11])
    expect((y - 1).values).to eq([1, 3, 7])
    expect((y * y).values).to eq([4, 16, 64])
    expect((y / 4).values).to eq([0.5, 1, 2])
    expect(x.broadcast_add(y).values).to eq([3, 6, 11, 6, 9, 14])
    expect(x.broadcast_sub(y).values).to eq([-1, -2, -5, 2, 1, -2])
    expect(x.broadcast_mul(y).values).to eq([2, 8, 24, 8, 20, 48])
    expect(x.broadcast_div(y).values).to eq([0.5, 0.5, 0.375, 2, 1.25, 0.75])
    expect((tensor([7, -3], :i64) * 3).values).to eq([21, -9])
  end

  it "multiplies, selects and chooses" do
    expect(x.matmul(x.t).values).to eq([14, 32, 32, 77])
    expect(x.index_select(tensor([2, 0], :u32), 1).values).to eq([3, 1, 6, 4])
    expect(tensor([1, 0], :u8).where_cond(tensor([1, 2]), tensor([3, 4])).values).to eq([1, 4])
  end

  it "reduces" do
    expect([x.sum(0).values, x.sum(nil).values, x.sum(-1).values]).to eq([[5, 7, 9], [5, 7, 9], [6, 15]])
    expect([x.mean(1).values, x.mean(nil).values]).to eq([[2, 5], [2.5, 3.5, 4.5]])
    expect([x.sum_all.item, x.mean_all.item]).to eq([21, 3.5])
    expect([x.max_keepdim(1).values, x.max_keepdim(1).shape]).to eq([[3, 6], [2, 1]])
    expect([x.min_keepdim(0).values, x.argmax_keepdim(1).values, x.argmin_keepdim(0).values]).to eq([[1, 2, 3], [2, 2], [0, 0, 0]])
  end

  it "has views" do
    expect(x.t.values).to eq([1, 4, 2, 5, 3, 6])
    expect(x.transpose(0, 1).shape).to eq([3, 2])
    expect([x.get(1).values, x[0].values, x[-1].values]).to eq([[4, 5, 6], [1, 2, 3], [4, 5, 6]])
    expect(x.narrow(1, 1, 2).values).to eq([2, 3, 5, 6])
    expect([x.unsqueeze(0).shape, x.unsqueeze(-1).shape, x.unsqueeze(0).squeeze(0).shape]).to eq([[1, 2, 3], [2, 3, 1], [2, 3]])
    expect([x.broadcast_as([2, 2, 3]).shape, x.broadcast_left([4]).shape]).to eq([[2, 2, 3], [4, 2, 3]])
    expect([x.unsqueeze(0).flatten_from(1).shape, x.unsqueeze(2).flatten_to(1).shape, x.t.flatten_all.values]).to eq([[1, 6], [6, 1], [1, 4, 2, 5, 3, 6]])
    expect([x.is_contiguous, x.t.is_contiguous, x.t.is_fortran_contiguous, x.t.contiguous.is_contiguous]).to eq([true, false, true, true])
    expect([x.copy.values, x.detach.values, x.to_device("cpu").values]).to eq([x.values] * 3)
  end

  it "counts what it computes, on the composed rung" do
    count = -> { Candle.tensor_counts.select { |c| c[:op] == "matmul" && c[:rung] == "composed" }.sum { |c| c[:count] } }
    expect { x.matmul(x.t) }.to change(&count).by(1)
    expect { x.t }.not_to change(&count)
  end

  it "refuses what cannot be, with an exception" do
    expect { x + tensor([1, 2]) }.to raise_error(RuntimeError, /differ/)
    expect { x + "1" }.to raise_error(TypeError)
    expect { x.matmul(x) }.to raise_error(RuntimeError, /cannot be multiplied/)
    expect { x.matmul([1]) }.to raise_error(TypeError)
    expect { x.sum(2) }.to raise_error(RuntimeError, /axis/)
    expect { x.sum("0") }.to raise_error(TypeError)
    expect { x.get(5) }.to raise_error(RuntimeError)
    expect { x.reshape([4]) }.to raise_error(RuntimeError, /elements/)
    expect { x.reshape([-1]) }.to raise_error(RangeError)
    expect { tensor([1, 0], :u32) / tensor([0, 0], :u32) }.to raise_error(RuntimeError)
    expect { described_class.zeros([1 << 45]) }.to raise_error(RuntimeError, /free/)
    expect { described_class.zeros([1 << 40, 1 << 40]) }.to raise_error(RuntimeError, /too large/)
    expect { tensor(["a"]) }.to raise_error(TypeError)
    expect { tensor([[1, 2], [3]]) }.to raise_error(ArgumentError)
    expect { tensor(nil) }.to raise_error(TypeError)
    expect { Candle::Native::Array.allocate }.to raise_error(TypeError)
  end
end
