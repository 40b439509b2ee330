# frozen_string_literal: true

# Compiles the extension of a source gem with cargo. SCONCE_FEATURES="cuda" adds features;
# CARGO_TARGET_DIR keeps the artefacts.
require "rbconfig"

abort "the gem sconce is compiled with cargo, and there is none on the PATH: install Rust (https://rustup.rs)" unless system("cargo", "--version")

root = File.expand_path("../..", __dir__)
target = ENV["CARGO_TARGET_DIR"] || "target"
features = ["extension", *ENV.fetch("SCONCE_FEATURES", "").split].join(",")
library = "libsconce_ruby.#{RbConfig::CONFIG["host_os"].include?("darwin") ? "dylib" : "so"}"
native = "sconce_native.#{RbConfig::CONFIG["DLEXT"]}"

File.write("Makefile", <<~MAKE)
  sitearchdir = #{RbConfig::CONFIG["sitearchdir"]}

  all:
  \tcargo build --release --manifest-path "#{root}/Cargo.toml" --target-dir "#{target}" -p sconce-ruby --features #{features}

  install: all
  \tmkdir -p "$(DESTDIR)$(sitearchdir)/sconce"
  \tcp "#{target}/release/#{library}" "$(DESTDIR)$(sitearchdir)/sconce/#{native}"

  clean:
  \trm -rf target
MAKE
