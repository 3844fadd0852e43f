// SPDX-License-Identifier: Apache-2.0

// Package kubelettest is a fake kubelet: a gRPC server of the PodResources API on a Unix socket.
// Tests give devices to pods, and stop and restart it.
package kubelettest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Kubelet is the fake. Its methods are safe for concurrent use.
type Kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	socket string

	mu          sync.Mutex
	server      *grpc.Server
	pods        []*podresources.PodResources
	allocatable []string
	block       chan struct{}
	queries     atomic.Int64
}

// New returns a stopped kubelet for a socket.
func New(socket string) *Kubelet { return &Kubelet{socket: socket} }

// Start listens on the socket, whose folder it creates. As a real kubelet does, it removes the
// socket of its predecessor.
func (k *Kubelet) Start() error {
	if err := os.MkdirAll(filepath.Dir(k.socket), 0o700); err != nil {
		return err
	}
	_ = os.Remove(k.socket)
	l, err := net.Listen("unix", k.socket)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, k)
	k.mu.Lock()
	k.server = s
	k.mu.Unlock()
	go func() { _ = s.Serve(l) }() // ends with Stop
	return nil
}

// Stop ends all calls and removes the socket.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	s := k.server
	k.server = nil
	if k.block != nil {
		close(k.block)
		k.block = nil
	}
	k.mu.Unlock()
	if s != nil {
		s.Stop()
	}
}

// Pod returns a pod of which each container has one device of NVIDIA's device plugin. The arguments
// after the pod's name are pairs of container and device id.
func Pod(namespace, name string, containerDevice ...string) *podresources.PodResources {
	p := &podresources.PodResources{Namespace: namespace, Name: name}
	for i := 0; i+1 < len(containerDevice); i += 2 {
		p.Containers = append(p.Containers, &podresources.ContainerResources{
			Name: containerDevice[i], Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{containerDevice[i+1]}}},
		})
	}
	return p
}

// Set sets the pods of the node, and the devices that pods can have.
func (k *Kubelet) Set(allocatable []string, pods ...*podresources.PodResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.allocatable, k.pods = allocatable, pods
}

// Block makes queries wait until Stop.
func (k *Kubelet) Block() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.block = make(chan struct{})
}

// Queries returns how many lists were requested.
func (k *Kubelet) Queries() int64 { return k.queries.Load() }

// List returns the pods.
func (k *Kubelet) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.queries.Add(1)
	k.mu.Lock()
	pods, block := k.pods, k.block
	k.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
		}
		return nil, context.Cause(ctx)
	}
	return &podresources.ListPodResourcesResponse{PodResources: pods}, nil
}

// GetAllocatableResources returns the devices that pods can have.
func (k *Kubelet) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &podresources.AllocatableResourcesResponse{
		Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: k.allocatable}},
	}, nil
}
