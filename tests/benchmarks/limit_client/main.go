// The limit client writes what the controller, the masters and the users of many jobs write, as fast as the
// API server takes it: no watch, no decision and no limit of requests. The time until all pods run is the least
// that any controller needs on this cluster.
//
//	limit-client KUBECONFIG RECORDING WORKERS
//
// The recording has the writes of one job, in order, and the jobs' names; `../cluster/limit.py` makes it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Write is one request of the recording. In its texts, @JOB@ is the job's name, @UID<n>@ the uid in the answer to
// the n-th write, and @VERSION@ the resourceVersion in the latest answer about the same object.
type Write struct {
	Verb        string
	URI         string
	ContentType string `json:"content_type"`
	Body        string
}

// Recording is what a job needs.
type Recording struct {
	Jobs   []string
	Writes []Write
	// Pods is how many pods a job has.
	Pods int
}

// Answer is what the client reads of an answer.
type Answer struct {
	Metadata struct {
		Name            string
		UID             string
		ResourceVersion string
	}
}

// Result is what the client prints, in seconds since the first write.
type Result struct {
	Written float64 `json:"written"`
	Running float64 `json:"running"`
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: limit-client KUBECONFIG RECORDING WORKERS")
	}
	text, err := os.ReadFile(os.Args[2])
	check(err)
	workers, err := strconv.Atoi(os.Args[3])
	check(err)
	var recording Recording
	check(json.Unmarshal(text, &recording))
	api := connect(os.Args[1])
	began := time.Now()
	running := make(chan error, 1)
	go func() { running <- awaitPods(api, len(recording.Jobs)*recording.Pods) }()
	check(writeAll(api, recording, workers))
	written := time.Since(began)
	check(<-running)
	check(json.NewEncoder(os.Stdout).Encode(Result{written.Seconds(), time.Since(began).Seconds()}))
}

func connect(kubeconfig string) *rest.RESTClient {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	check(err)
	config.QPS = -1 // no limit
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme())
	api, err := rest.UnversionedRESTClientFor(config)
	check(err)
	return api
}

func writeAll(api *rest.RESTClient, recording Recording, workers int) error {
	jobs := make(chan string)
	failures := make(chan error, workers)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for job := range jobs {
				if err := writeJob(api, recording.Writes, job); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	for _, job := range recording.Jobs {
		select {
		case jobs <- job:
		case err := <-failures:
			return err
		}
	}
	close(jobs)
	group.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

func writeJob(api *rest.RESTClient, writes []Write, job string) error {
	replaced := []string{"@JOB@", job}
	versions := map[string]string{}
	for index, write := range writes {
		object, _, _ := strings.Cut(write.URI, "?")
		object = strings.TrimSuffix(object, "/status")
		replacer := strings.NewReplacer(append(replaced, "@VERSION@", versions[object])...)
		request := api.Verb(write.Verb).RequestURI(replacer.Replace(write.URI))
		request.SetHeader("Content-Type", write.ContentType).SetHeader("Accept", "application/json")
		raw, err := request.Body([]byte(replacer.Replace(write.Body))).Do(context.Background()).Raw()
		if err != nil {
			return fmt.Errorf("%s %s for %s: %w: %s", write.Verb, write.URI, job, err, raw)
		}
		var answer Answer
		if err := json.Unmarshal(raw, &answer); err != nil {
			return err
		}
		replaced = append(replaced, fmt.Sprintf("@UID%d@", index), answer.Metadata.UID)
		if write.Verb == "POST" {
			object += "/" + strings.ReplaceAll(answer.Metadata.Name, job, "@JOB@")
		}
		versions[object] = answer.Metadata.ResourceVersion
	}
	return nil
}

// awaitPods waits until so many pods have begun to run. An API server under load ends the watches of slow readers, so
// it watches again.
func awaitPods(api *rest.RESTClient, pods int) error {
	running := map[string]bool{}
	for len(running) < pods {
		if err := watchPods(api, pods, running); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// watchPods reads one event for each pod that begins to run, until so many run or the watch ends.
func watchPods(api *rest.RESTClient, pods int, running map[string]bool) error {
	const uri = "/api/v1/pods?watch=true&resourceVersion=0&timeoutSeconds=3600&fieldSelector=status.phase%3DRunning"
	request := api.Get().RequestURI(uri)
	// Of each pod only the metadata is sent.
	request.SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	stream, err := request.Stream(context.Background())
	if err != nil {
		return err
	}
	defer stream.Close()
	events := json.NewDecoder(stream)
	for len(running) < pods {
		var event struct {
			Type   string
			Object Answer
		}
		if err := events.Decode(&event); err == io.EOF || event.Type == "ERROR" {
			return nil
		} else if err != nil {
			return err
		}
		running[event.Object.Metadata.Name] = true
	}
	return nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
