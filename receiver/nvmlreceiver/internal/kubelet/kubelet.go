// SPDX-License-Identifier: Apache-2.0

// Package kubelet reads from the kubelet of this node which pods have which device. It uses the
// PodResources API, version 1, on the kubelet's Unix socket. It reads only: the API cannot change
// anything.
//
// Devices have the ids of their device plugin: a UUID, with the suffix ::n of a replica where
// several pods share the device, or a number. Devices that pods claim by dynamic resource
// allocation have no such id and are unknown here.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// DefaultSocket is where a kubelet listens.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	// maxAnswer is the limit that the kubelet itself has for an answer. maxHeaders bounds what a
	// process that is no kubelet can send instead.
	maxAnswer  = 16 << 20
	maxHeaders = 64 << 10
	// maxDevices bounds the stored devices. A node has at most a few hundred with all MIG slices.
	maxDevices = 4096
	// maxName is Kubernetes' limit for names of objects. maxID bounds the id of a device.
	maxName = 253
	maxID   = 128
	// maxProblem bounds the text of an error in the log.
	maxProblem = 200
)

// Holder says who has a device.
type Holder struct {
	// Pods is the number of pods that have the device; 0 for an idle one.
	Pods int
	// Namespace and Pod are known if exactly one pod has the device, and Container if exactly one
	// container of it has.
	Namespace, Pod, Container string
}

// intervals are the times of a Client. Tests use shorter ones.
type intervals struct {
	// timeout bounds one query.
	timeout time.Duration
	// keep is how long an answer is valid while the kubelet does not answer. The kubelet gives
	// devices to pods, so during its restart only the end of a pod can be missed.
	keep time.Duration
}

// Client queries a kubelet. Its methods are safe for concurrent use, but call Run once.
type Client struct {
	sockets   []string
	required  bool
	log       *zap.Logger
	intervals intervals
	last      atomic.Pointer[answer]
	first     chan struct{}
}

// answer is what the kubelet said at a time.
type answer struct {
	at      time.Time
	holders map[string]Holder
}

// New returns a client of the kubelet behind a socket. An empty path means the default path below
// root, the mount point of the host's file system, or the default path itself. That the socket does
// not exist is then no problem: not every machine is a node of Kubernetes.
func New(socket, root string, log *zap.Logger) *Client {
	c := &Client{
		sockets: []string{socket}, required: socket != "", log: log, first: make(chan struct{}),
		intervals: intervals{timeout: 2 * time.Second, keep: 2 * time.Minute},
	}
	if socket == "" {
		c.sockets = slices.Compact([]string{filepath.Join(root, DefaultSocket), DefaultSocket})
	}
	return c
}

// First is closed after the first query, whatever its result.
func (c *Client) First() <-chan struct{} { return c.first }

// Run queries the kubelet at the given interval until the context ends. It logs one warning for a
// problem, regardless of its duration.
func (c *Client) Run(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	first := sync.OnceFunc(func() { close(c.first) })
	answered, failed := false, false
	for {
		socket, err := c.find()
		if err == nil && socket != "" {
			err = c.query(ctx, socket)
		}
		first()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && socket == "" && !answered: // no node of Kubernetes
		case err == nil && socket != "":
			if failed || !answered {
				c.log.Info("the kubelet says which pods have which device", zap.String("socket", socket))
			}
			answered, failed = true, false
		case !failed:
			if err == nil {
				err = errors.New("its socket was removed")
			}
			c.log.Warn("the kubelet does not say which pods have which device; retrying",
				zap.Strings("sockets", c.sockets), zap.String("error", problem(err)))
			failed = true
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Find returns who has a device, by any of its ids. It returns false if that is unknown, or if the
// kubelet does not manage the device.
func (c *Client) Find(ids ...string) (Holder, bool) {
	a := c.last.Load()
	if a == nil || time.Since(a.at) > c.intervals.keep {
		return Holder{}, false
	}
	for _, id := range ids {
		if h, ok := a.holders[id]; ok {
			return h, true
		}
	}
	return Holder{}, false
}

// find returns the path of the socket, or "" where there is none and none is required.
func (c *Client) find() (string, error) {
	for _, s := range c.sockets {
		info, err := os.Stat(s)
		switch {
		case err == nil && info.Mode()&fs.ModeSocket != 0:
			return s, nil
		case err == nil:
			return "", fmt.Errorf("%s is no socket", s)
		case !errors.Is(err, fs.ErrNotExist) || c.required:
			return "", err
		}
	}
	return "", nil
}

// query reads the kubelet's answer. A connection for each query makes a restart of the kubelet
// nothing special; it costs less than a millisecond.
func (c *Client) query(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, c.intervals.timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := podresources.NewPodResourcesListerClient(conn)
	list, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	// A kubelet before 1.23 has this only on request. Without it, idle devices are unknown.
	all, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		c.log.Debug("the kubelet does not list idle devices", zap.String("error", problem(err)))
	}
	c.last.Store(&answer{at: time.Now(), holders: holders(list, all)})
	return nil
}

// holders returns who has each device. The list decides; the allocatable devices add the idle ones.
func holders(list *podresources.ListPodResourcesResponse, allocatable *podresources.AllocatableResourcesResponse) map[string]Holder {
	out := map[string]Holder{}
	for _, pod := range list.GetPodResources() {
		own := map[string]Holder{}
		for _, container := range pod.GetContainers() {
			for id := range devices(container.GetDevices()) {
				h, known := own[id]
				switch {
				case !known && len(own) >= maxDevices:
					continue
				case !known:
					h = Holder{Pods: 1, Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
				case h.Container != container.GetName():
					h.Container = ""
				}
				own[id] = h
			}
		}
		for id, h := range own {
			other, known := out[id]
			switch {
			case known:
				h = Holder{Pods: other.Pods + 1}
			case len(out) >= maxDevices:
				continue
			case !valid(h.Namespace) || !valid(h.Pod):
				h = Holder{Pods: 1}
			case !valid(h.Container):
				h.Container = ""
			}
			out[id] = h
		}
	}
	for id := range devices(allocatable.GetDevices()) {
		if _, known := out[id]; !known && len(out) < maxDevices {
			out[id] = Holder{}
		}
	}
	return out
}

func valid(name string) bool { return name != "" && len(name) <= maxName }

// devices yields the ids of NVIDIA devices, without the number of a replica.
func devices(all []*podresources.ContainerDevices) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, d := range all {
			for _, id := range d.GetDeviceIds() {
				if id, ok := device(d.GetResourceName(), id); ok && !yield(id) {
					return
				}
			}
		}
	}
}

// device returns the id of a device without the number of a replica: ::n of NVIDIA's device plugin,
// /vgpun of Google's. Only a UUID is unique among the resources of all vendors.
func device(resource, id string) (string, bool) {
	id, _, _ = strings.Cut(id, "::")
	id, _, _ = strings.Cut(id, "/vgpu")
	if id == "" || len(id) > maxID {
		return "", false
	}
	return id, strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-") || strings.HasPrefix(resource, "nvidia.com/")
}

// problem returns a bounded text of an error, which a process other than the kubelet may have
// chosen.
func problem(err error) string {
	text := status.Convert(err).Message()
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem], "") + "…"
	}
	return text
}
