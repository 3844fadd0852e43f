// SPDX-License-Identifier: Apache-2.0

// Package broker describes a Kafka broker of one node for tests and benchmarks, without ZooKeeper
// and replicas: its settings, its folder and its readiness. It starts no process; the caller starts
// and kills the broker.
//
// scripts/kafka fetches the broker itself.
package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clusterID is the same for all brokers; they never form one cluster.
const clusterID = "Z3B1ZmxpZ2h0LXRlc3RzIQ"

// Broker is one broker. Do not change its fields after Format.
type Broker struct {
	// Launcher is the program that scripts/kafka writes.
	Launcher string
	// Dir holds the broker's settings and data. It remains after a kill.
	Dir string
	// Address is the host:port for clients. Controller is the address of the broker's controller.
	Address, Controller string
	// Properties extend or replace the settings.
	Properties map[string]string
}

// Format writes the settings and prepares the data folder with additional options of the command.
func (b Broker) Format(ctx context.Context, options ...string) error {
	if err := b.configure(); err != nil {
		return err
	}
	arguments := append([]string{"kafka.tools.StorageTool", "format", "-t", clusterID, "-c", b.settings()}, options...)
	format := exec.CommandContext(ctx, b.Launcher, arguments...)
	if out, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("format the broker's folder: %w\n%s", err, out)
	}
	return nil
}

// FormatLike is Format with a copy of another broker's data folder. The other broker must be
// formatted and not started. It is faster than Format.
func (b Broker) FormatLike(other Broker) error {
	if err := b.configure(); err != nil {
		return err
	}
	if err := os.CopyFS(b.data(), os.DirFS(other.data())); err != nil {
		return fmt.Errorf("copy the broker's folder: %w", err)
	}
	return nil
}

// configure writes the settings.
func (b Broker) configure() error {
	settings := map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          "1",
		"controller.quorum.voters":                         "1@" + b.Controller,
		"listeners":                                        "PLAINTEXT://" + b.Address + ",CONTROLLER://" + b.Controller,
		"advertised.listeners":                             "PLAINTEXT://" + b.Address,
		"controller.listener.names":                        "CONTROLLER",
		"listener.security.protocol.map":                   "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":                       "PLAINTEXT",
		"log.dirs":                                         b.data(),
		"num.partitions":                                   "6",
		"offsets.topic.num.partitions":                     "1",
		"offsets.topic.replication.factor":                 "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		// A group of one member need not wait for others.
		"group.initial.rebalance.delay.ms": "0",
		// As docs/deploying.md recommends.
		"log.message.timestamp.type": "LogAppendTime",
		// A killed broker can restart only after its previous session has timed out, by default
		// after 9 s.
		"broker.session.timeout.ms":    "3000",
		"broker.heartbeat.interval.ms": "500",
	}
	maps.Copy(settings, b.Properties)
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s=%s\n", key, settings[key])
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(b.settings(), []byte(text.String()), 0o600)
}

// Arguments returns the arguments of Launcher that start the broker.
func (b Broker) Arguments() []string {
	return []string{"-Xmx384m", "-XX:+UseSerialGC", "kafka.Kafka", b.settings()}
}

// Wait returns when the broker answers and has all Topics, or when ctx ends.
func (b Broker) Wait(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Address))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := createTopics(try, client, Topics...)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (b Broker) settings() string { return filepath.Join(b.Dir, "server.properties") }

func (b Broker) data() string { return filepath.Join(b.Dir, "data") }
