// Publishes with acks, as an application with nats.go does: main PORT SUBJECT SIZE COUNT WINDOW. Prints acks per second.
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	subject, size, count, window := os.Args[2], number(os.Args[3]), number(os.Args[4]), number(os.Args[5])
	connection, err := nats.Connect("nats://127.0.0.1:" + os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	stream, err := connection.JetStream(nats.PublishAsyncMaxPending(window))
	if err != nil {
		log.Fatal(err)
	}
	payload := make([]byte, size)
	acks := make([]nats.PubAckFuture, count)
	started := time.Now()
	for at := range acks {
		acks[at], err = stream.PublishAsync(subject, payload, nats.StallWait(time.Minute))
		if err != nil {
			log.Fatal(err)
		}
	}
	<-stream.PublishAsyncComplete()
	elapsed := time.Since(started)
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			log.Fatal(err)
		}
	}
	fmt.Println(float64(count) / elapsed.Seconds())
}
