# SPDX-License-Identifier: Apache-2.0
#
# The Collector of builder-k8s.yaml, gpuflight and the injection library in an image with glibc and
# libstdc++ and nothing else: no shell, no package manager, and a user who is not root. Its root file
# system can be read-only.
#
#   docker build -t otelcol-gpuflight .
#   docker run --rm otelcol-gpuflight components
#
# NVML is the host's: the NVIDIA Container Toolkit puts it into the container (`--gpus all`,
# NVIDIA_DRIVER_CAPABILITIES=utility), and the Collector loads it when it starts. That needs a
# dynamic linker, so the binary is not static. charts/gpuflight/README.md says which rights the cuda
# receiver needs, examples/compose runs everything but the GPU.

# The images are named by tag, since their digests could not be looked up when this was written. Pin
# them when you build, with the digests that you have checked:
#
#   docker buildx imagetools inspect golang:1.26.8-bookworm
#   docker build --build-arg GOLANG=golang@sha256:… --build-arg BUSYBOX=busybox@sha256:… \
#     --build-arg BASE=gcr.io/distroless/cc-debian12@sha256:… -t otelcol-gpuflight .
#
# The Debian release of GOLANG and BASE is the same: a binary needs the glibc that it was linked against,
# or a newer one.
ARG GOLANG=golang:1.26.8-bookworm
ARG BUSYBOX=busybox:1.37.0-musl
ARG BASE=gcr.io/distroless/cc-debian12:nonroot
# Where the programs come from: "build" compiles them, "prebuilt" takes those that a release has built.
ARG PROGRAMS=build

FROM ${GOLANG} AS build
WORKDIR /src
# No "go mod download" before: it would fetch what only other systems need. The caches are kept
# between builds.
COPY . .
# The version of a release, for example 0.2.0.
ARG VERSION=
ENV GOTOOLCHAIN=local CGO_ENABLED=1
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    flags="-s -w -X github.com/gpuflight/gpuflight/internal/version.linked=${VERSION}" && \
    go work init . ./cmd/gpuflight && go build -buildvcs=false -ldflags "$flags" -o /out/ ./cmd/gpuflight && \
    GOWORK=off go build -C cmd/otelcol-gpuflight-k8s -buildvcs=false -ldflags "$flags" -o /out/otelcol-gpuflight . && \
    mkdir /out/lib && go build -buildvcs=false -ldflags "$flags" -buildmode=c-shared -o /out/lib/libgpuflight-recorder.so ./cupti/inject && \
    rm /out/lib/libgpuflight-recorder.h && cupti/inject/loader/build /out/lib/libgpuflight.so
RUN mkdir /out/state

# GoReleaser's context has a folder for each platform. The loader is no artifact of its own: it lies in dist.
FROM --platform=${BUILDPLATFORM} ${BUSYBOX} AS prebuilt
ARG TARGETPLATFORM
ARG TARGETARCH
COPY ${TARGETPLATFORM}/otelcol-gpuflight ${TARGETPLATFORM}/gpuflight /out/
COPY ${TARGETPLATFORM}/libgpuflight-recorder.so dist/loader_${TARGETARCH}/libgpuflight.so /out/lib/
RUN ["/bin/busybox", "mkdir", "/out/state"]

FROM ${PROGRAMS} AS programs

FROM ${BUSYBOX} AS busybox

FROM ${BASE}
COPY --from=programs /out/otelcol-gpuflight /out/gpuflight /usr/local/bin/
# Where gpuflight looks for it, and from where examples/operator copies it into other pods.
COPY --from=programs /out/lib /usr/local/lib/gpuflight
COPY config /etc/otelcol-gpuflight
# A volume that is new takes over the folder's owner.
COPY --from=programs --chown=65532:65532 /out/state /var/lib/otelcol-gpuflight
# busybox is what its file is called: wget for the health check, cp for examples/operator.
COPY --from=busybox /bin/busybox /usr/local/bin/wget
COPY --from=busybox /bin/busybox /usr/local/bin/cp
USER 65532:65532
# The health_check extension at its place in all files of config that have one. GPUFLIGHT_HEALTH
# moves it; then the check has to move too (--health-cmd, healthcheck in compose).
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["/usr/local/bin/wget", "-q", "-O", "/dev/null", "http://127.0.0.1:13133/"]
ENTRYPOINT ["/usr/local/bin/otelcol-gpuflight"]
CMD ["--config", "/etc/otelcol-gpuflight/agent.yaml"]
