// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topics are the topics of config/kafka.yaml, whose exporter creates none.
var Topics = []string{"otlp_spans", "otlp_metrics", "otlp_logs"}

// createTopics creates missing topics with the broker's default partitions and replicas. It fails
// if the broker has no controller yet.
func createTopics(ctx context.Context, client *kgo.Client, names ...string) error {
	request := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range names {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
		request.Topics = append(request.Topics, topic)
	}
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("create topics: %w", err)
	}
	for _, topic := range answer.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", topic.Topic, err)
		}
	}
	return nil
}
