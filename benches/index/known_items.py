"""Known-item queries on rust-doc, by a rule that was written before anything was measured.

The items. A page's sentence is the first sentence of the first paragraph of its description (the
first `docblock` of an API page, the first paragraph of `main` of a book), without markup. Left out:
redirections, pages below `arch` (thousands of sentences on instructions that differ in a number),
sentences on tracking issues, and sentences of fewer than 6 or more than 30 words. Pages with the same
sentence are one item (`core`, `alloc` and `std` show the same thing); more than four pages are not a
known item. Finding any page of the item counts.

The queries. Only sentences with at least three words in GLOSSARY take part, where these are at least
half of the words that remain below. They are ordered by the SHA-256 of the sentence; the first, third,
fifth … give literal queries, the others paraphrased ones, so that both halves have the same kind of
items.

- Literal: the first ten words of the sentence as they stand.
- Paraphrased: what is in <code> is dropped, because somebody who does not know the page does not
  know its names; the rest in lower case without punctuation; words of STOP_WORDS are dropped; each
  word in GLOSSARY is replaced by its entry; other words stay. No model and no person sees the result.

The questions. QUESTIONS are answered by rust-doc; NEAR are about programming, but their answers are
not in rust-doc; FAR are about anything else. Written by hand, before measuring.
"""
import html
import re

import common

DOCBLOCK = re.compile(r'<div class="docblock[^"]*">\s*<p>(.*?)</p>', re.DOTALL)
MAIN = re.compile(r"<main\b.*?<p>(.*?)</p>", re.DOTALL)
CODE = re.compile(r"<code\b.*?</code>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
MOST_PAGES = 4

STOP_WORDS = set("""a an and are as at be been being but by can could do does for from had has have if in into is it its itself
may might more most must not of on or other our out over own s should so such than that the their them then there these they
this those to too was we were what when where which while who will with would you your""".split())

# Words of the descriptions with other words of the same meaning here.
GLOSSARY = dict(line.split("=") for line in """
returns=gives back|return=give back|returned=given back|returning=giving back|yields=hands out|yield=hand out
creates=makes|create=make|created=made|creating=making|constructs=builds up|construct=build up
type=kind|types=kinds|value=content|values=contents|iterator=walker through a collection|iterators=walkers through a collection
iteration=walking through|elements=members|element=member|items=entries|item=entry|entries=records|entry=record
error=failure|errors=failures|failure=mishap|panic=crash|panics=crashes|function=routine|functions=routines
method=routine|methods=routines|file=document on disk|files=documents on disk|directory=folder|directories=folders
path=location of a file|paths=locations of files|filesystem=disk|string=text|strings=texts|pointer=address|pointers=addresses
reference=borrowed view|references=borrowed views|mutable=changeable|immutable=unchangeable|slice=part of an array
vector=growable list|array=fixed row|integer=whole number|integers=whole numbers|unsigned=non-negative|float=decimal number
number=figure|bytes=octets|byte=octet|memory=ram|allocation=reserved storage|allocator=storage manager|allocated=reserved
thread=parallel task|threads=parallel tasks|process=running program|program=application|programs=applications
process's=running program's|compiler=translator|compile=translate|compiled=translated|compilation=translation
library=package of code|module=namespace|modules=namespaces|macro=code template|macros=code templates
trait=interface|traits=interfaces|struct=record type|structs=record types|structure=arrangement|structures=arrangements
enum=choice of variants|variant=alternative|variants=alternatives|closure=anonymous function|closures=anonymous functions
variable=named slot|variables=named slots|argument=parameter|arguments=parameters|parameter=argument|parameters=arguments
default=preset|whether=if|checks=tests|check=test|converts=turns|convert=turn|converted=turned|converting=turning
conversion=turning|provides=offers|provide=offer|provided=offered|allows=lets|allow=let|contains=holds|contain=hold
containing=holding|represents=stands for|representing=standing for|performs=carries out|perform=carry out
removes=deletes|remove=delete|removed=deleted|removing=deleting|inserts=puts|insert=put|appends=adds at the end
append=add at the end|writes=stores|write=store|writing=storing|reads=loads|read=load|reading=loading
starts=begins|start=begin|starting=beginning|ends=finishes|end=finish|run=execute|runs=executes|running=executing
called=invoked|call=invoke|calls=invokes|calling=invoking|current=present|given=supplied|specified=named|specific=particular
possible=feasible|different=differing|same=identical|equal=identical|equivalent=alike|similar=alike|single=sole
only=solely|first=initial|last=final|previous=earlier|next=following|new=fresh|multiple=several|many=numerous
several=numerous|various=diverse|available=at hand|common=frequent|useful=helpful|simple=easy|basic=elementary
size=extent|length=extent|range=interval|maximum=largest|minimum=smallest|order=sequence|sequence=succession
environment=surroundings|version=release|system=machine|operating=running|platform=machine|output=results|input=data fed in
data=information|object=thing|objects=things|list=enumeration|set=group|collection=container|collections=containers
map=dictionary|key=lookup name|keys=lookup names|lock=guard|shared=common|raw=bare|unsafe=dangerous|safe=harmless
underlying=inner|inner=inside|wrapper=shell around|wraps=encloses|contents=what is inside|result=outcome|results=outcomes
behavior=conduct|support=help|supports=helps|implementation=realization|implementations=realizations|implements=realizes
implement=realize|implemented=realized|operations=actions|operation=action|operator=sign|expression=formula
expressions=formulas|pattern=template|patterns=templates|matching=fitting|matches=fits|syntax=grammar|language=tongue
languages=tongues|code=source text|test=trial|tests=trials|testing=trials|test's=trial's|rules=regulations
used=employed|use=employ|uses=employs|using=by means of|way=manner|ways=manners|section=part|chapter=part|book=guide
example=sample|examples=samples|describes=explains|describe=explain|specifies=states|specify=state|defined=laid down
defines=lays down|define=lay down|ownership=who owns data|lifetime=how long a borrow lives|lifetimes=how long borrows live
scope=region of code|message=notice|messages=notices|name=label|names=labels|stream=flow|buffer=temporary storage
socket=network connection|connection=link|address=place|network=net|time=moment|duration=span|condition=state|control=steer
asynchronous=non-blocking|concurrency=doing things at once|concurrent=simultaneous|parallel=simultaneous
automatically=by itself|manually=by hand|handling=dealing with|handle=deal with|handles=deals with|standard=usual
""".strip().replace("\n", "|").split("|"))

QUESTIONS = """How do I read a whole file into a string?
How do I iterate over the lines of a file?
What is the difference between String and &str?
How do I spawn a thread and wait for its result?
How can I share data between threads safely?
What does the question mark operator do?
How do I define my own error type?
When is a value dropped?
How do I sort a vector by a key?
How do I remove duplicates from a vector?
What is a trait object?
How do lifetimes prevent dangling references?
How do I parse an integer from a string?
How do I get the command line arguments of my program?
How do I write a declarative macro?
What makes a type Copy?
How do I run only one test?
How do I add a dependency to my project?
What is undefined behavior in unsafe code?
How do I insert a key into a hash map only if it is missing?
How do I create a TCP server?
How do I measure elapsed time?
How do I match on several patterns at once?
How do I return a closure from a function?
What are associated types for?
How do I convert between integer types without losing data?
How does Cargo resolve versions?
How do I call a C function?
How do I split a string at whitespace?
How do I publish a crate?""".splitlines()

NEAR = """How do I configure an ingress controller in Kubernetes?
What does the virtual DOM of React do?
How do I write a LEFT JOIN in PostgreSQL?
How do I center a div with CSS flexbox?
How do I create a pandas data frame from a CSV file?
What is the difference between npm install and npm ci?
How do I undo the last commit in git?
How do I train a neural network in PyTorch?
How do I set up a virtual environment for Python?
What is a Docker volume?
How do I schedule a cron job every five minutes?
How do I write a stored procedure in Oracle?
How does garbage collection work in the Java virtual machine?
How do I bind a model to a view in Angular?
What is the event loop of Node.js?
How do I authenticate users with OAuth in Django?
How do I index a column in MongoDB?
How do I write a shader in GLSL?
How do I deploy an application to Heroku?
How do I make a pivot table in a spreadsheet?
What is dependency injection in Spring?
How do I configure a reverse proxy in nginx?
How do I declare a delegate in C#?
How do I animate a sprite in Unity?
How do I mock an HTTP request in Jest?
What is a monad transformer in Haskell?
How do I roll back a migration in Rails?
How do I sign an Android application?
How do I partition a disk with LVM?
How do I write a Makefile rule for Fortran?""".splitlines()

FAR = """How long does it take to boil an egg?
Who painted the ceiling of the Sistine Chapel?
What is the capital of Mongolia?
How do I treat a sprained ankle?
Which vitamins are in spinach?
When did the Roman Empire fall?
How far is the moon from the earth?
What are the rules of offside in football?
How do bees make honey?
How do I prune roses in winter?
What causes the northern lights?
Who wrote the opera The Magic Flute?
How do I remove red wine from a carpet?
What is the boiling point of ethanol?
How many bones does an adult human have?
Which countries border Switzerland?
How is cheddar cheese made?
What did Napoleon do on Elba?
How do I knit a pair of socks?
What is the average depth of the Pacific?
How do I apply for a fishing licence?
Why do cats purr?
How much should I tip in a restaurant in Japan?
What is the plot of Hamlet?
How do vaccines train the immune system?
When is the best time to plant tulips?
How do I change the tyre of a bicycle?
Which instruments play in a string quartet?
What is the tallest mountain in Africa?
How do I make sourdough bread?""".splitlines()


def description(page):
    """The first sentence of a page's description, in HTML; `None` if there is none."""
    if 'http-equiv="refresh"' in page[:2000]:
        return None
    found = DOCBLOCK.search(page) or MAIN.search(page)
    return SENTENCE_END.split(" ".join(found[1].split()))[0] if found else None


def plain(markup):
    return " ".join(html.unescape(TAG.sub("", markup)).split())


def paraphrase(markup):
    """The paraphrased query, and how many of its words were replaced and stayed."""
    words = re.findall(r"[a-z][a-z']*", plain(CODE.sub(" ", markup)).lower())
    words = [word for word in words if word not in STOP_WORDS]
    replaced = sum(word in GLOSSARY for word in words)
    return " ".join(GLOSSARY.get(word, word) for word in words), replaced, len(words) - replaced


def items(pages):
    """The items among `pages`, in a fixed order: the markup of the sentence, and the pages that show it."""
    by_sentence = {}
    for page in pages:
        if "arch" in page.parts:
            continue
        markup = description(page.read_text(errors="replace"))
        text = plain(markup) if markup else ""
        if 6 <= len(text.split()) <= 30 and "tracking issue" not in text:
            by_sentence.setdefault(text, (markup, []))[1].append(str(page))
    found = []
    for text in sorted(by_sentence, key=common.hashed):
        markup, shown = by_sentence[text]
        _, replaced, stayed = paraphrase(markup)
        if len(shown) <= MOST_PAGES and replaced >= 3 and replaced >= stayed:
            found.append((markup, shown))
    return found


def queries(pages, count):
    """At most `count` queries: the half, the text, and the pages that are right."""
    chosen = []
    for number, (markup, shown) in enumerate(items(pages)[:count]):
        if number % 2 == 0:
            chosen.append(("literal", " ".join(plain(markup).split()[:10]), set(shown)))
        else:
            chosen.append(("paraphrased", paraphrase(markup)[0], set(shown)))
    return chosen
